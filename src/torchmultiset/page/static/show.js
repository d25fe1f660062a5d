// Display of a prediction: bars, entropy curve, chips and answer.

export const $ = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

export function percent(p) {
  if (p > 0.999) return "> 99.9 %";
  if (p < 0.001) return "< 0.1 %";
  return `${(100 * p).toFixed(p < 0.1 || p > 0.99 ? 1 : 0)} %`;
}

/** [["cat", 2], ["dog", 1]] -> "cat, cat, dog" */
export function inWords(multiset) {
  return multiset.flatMap(([name, count]) => Array(count).fill(name)).join(", ") || "nothing";
}

/** Like inWords, but with counts for large multisets. */
function briefly(multiset) {
  const size = multiset.reduce((sum, [, count]) => sum + count, 0);
  if (size <= 6) return inWords(multiset);
  return multiset.map(([name, count]) => (count > 1 ? `${name} ×${count}` : name)).join(", ");
}

/** ["cat", "cat", "dog"] -> [["cat", 2], ["dog", 1]] */
export function counted(names) {
  return [...new Set(names)].map((name) => [name, names.filter((other) => other === name).length]);
}

export function showChips(element, multiset, newest) {
  element.dataset.labels = inWords(multiset);
  element.replaceChildren(
    ...multiset.map(([name, count]) => {
      const times = count > 1 ? [make("small", {}, ` ×${count}`)] : [];
      return make("span", { className: name === newest ? "chip new" : "chip" }, name, ...times);
    }),
    ...(multiset.length ? [] : [make("span", { className: "quiet" }, "nothing")]),
  );
}

function bar(name, className = "") {
  const fill = make("div", { className: "fill" });
  const share = make("span", { className: "share" });
  const label = make("span", { className: "name", title: name }, name);
  return { row: make("li", { className }, label, make("div", { className: "track" }, fill), share), fill, share };
}

/** One row per class, then, if present, one for all other classes and one for stopping. */
export class Bars {
  constructor(element, { classes, others, steps }) {
    const longest = Math.max(...classes.map((name) => name.length), others ? 7 : 0, steps[0].stop === null ? 0 : 4);
    element.style.setProperty("--name", `min(${longest + 1}ch, 8em)`);
    this.classes = classes.map((name) => bar(name));
    this.others = others ? bar(`${others} more`, "apart") : null;
    this.stop = steps[0].stop === null ? null : bar("stop?", "apart");
    this.element = element;
    element.replaceChildren(...[...this.classes, this.others, this.stop].filter(Boolean).map(({ row }) => row));
  }

  /** `chosen`: whether to highlight the label that the step emits. */
  show(step, chosen, ending) {
    this.element.classList.toggle("over", chosen && ending !== "at once" && step.named === null);
    const set = ({ row, fill, share }, p, named) => {
      fill.style.width = `${100 * p}%`;
      share.textContent = percent(p);
      row.classList.toggle("named", named);
    };
    this.classes.forEach((one, i) => set(one, step.probabilities[i], chosen && step.named === i));
    if (this.others) set(this.others, step.rest, false);
    if (this.stop) set(this.stop, step.stop, chosen && ending === "policy" && step.named === null);
  }
}

const HEIGHT = 84;
const ENDINGS = { policy: "stop", end: "end", full: "full", "at once": "all" };

/** One column per step: its entropy as a point of the curve, and the emitted label. */
export class Moments {
  constructor({ steps, classes, ends }, goTo) {
    this.steps = steps;
    this.isLabel = (step, t) => step.named !== null && !(ends === "end" && t === steps.length - 1);
    const isMeasured = (step, t) => this.isLabel(step, t) || ends === "at once";
    const highest = Math.max(0.3, ...steps.filter(isMeasured).map((step) => step.entropy));
    this.height = ({ entropy }) => 26 + (HEIGHT - 34) * (1 - entropy / highest);
    this.columns = steps.map((step, t) => {
      const label = this.isLabel(step, t) ? classes[step.named] : ENDINGS[ends];
      const entropy = step.entropy.toFixed(2);
      const button = make("button", { type: "button", title: label });
      button.setAttribute("aria-label", `Step ${t + 1}: ${label}${isMeasured(step, t) ? `, entropy ${entropy}` : ""}`);
      if (isMeasured(step, t)) {
        const dot = make("span", { className: "dot" });
        const value = make("span", { className: "value" }, entropy);
        dot.style.top = value.style.top = `${this.height(step)}px`;
        button.append(dot, value);
      }
      button.append(make("span", { className: "chip" }, label));
      button.addEventListener("click", () => goTo(t));
      return button;
    });
    $("moments").replaceChildren(...this.columns.map((button) => make("li", {}, button)));
    const longest = Math.max(...this.columns.map((button) => button.title.length));
    $("plot").style.setProperty("--count", steps.length);
    $("plot").style.setProperty("--column", `${Math.min(Math.max(44, 28 + 8 * longest), 132)}px`);
    $("line").ownerSVGElement.setAttribute("viewBox", `0 0 ${steps.length} ${HEIGHT}`);
  }

  show(current, chosen) {
    this.columns.forEach((button, t) => {
      button.classList.toggle("later", t > current || (t === current && !chosen));
      button.setAttribute("aria-current", t === current ? "step" : "false");
    });
    const { offsetLeft, offsetWidth } = this.columns[current].parentElement;
    const window = $("plot").parentElement;
    window.scrollLeft = offsetLeft + offsetWidth / 2 - window.clientWidth / 2;
    const reached = this.steps.slice(0, current + (chosen ? 1 : 0)).filter(this.isLabel);
    const points = reached.map((step, t) => `${t + 0.5} ${this.height(step)}`);
    $("line").setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
  }
}

/** A row per class: the probability of 0, 1, 2, ... of it. The predicted count is framed. */
export function showCounts(table, { counts, classes, answer }) {
  table.hidden = counts.length === 0;
  if (table.hidden) return;
  const predicted = Object.fromEntries(answer);
  const head = make("tr", {}, make("th", { scope: "col" }, "label"));
  head.append(...counts[0].map((_, m) => make("th", { scope: "col" }, String(m))));
  const rows = counts.map((row, i) => {
    const line = make("tr", {}, make("th", { scope: "row", title: classes[i] }, classes[i]));
    row.forEach((p, m) => {
      const cell = make("td", { title: percent(p) }, p >= 0.005 ? (100 * p).toFixed(0) : "");
      cell.style.setProperty("--p", p);
      cell.classList.toggle("likely", p > 0.7);
      cell.classList.toggle("chosen", m === (predicted[classes[i]] ?? 0));
      line.append(cell);
    });
    return line;
  });
  table.replaceChildren(make("caption", { className: "quiet" }, "Probability in percent"), head, ...rows);
}

/** The probability that each place was counted, over the picture. */
export function showHeat(canvas, places) {
  canvas.width = places[0].length;
  canvas.height = places.length;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(canvas.width, canvas.height);
  places.flat().forEach((p, i) => image.data.set([255, 140, 0, 200 * Math.min(p, 1)], 4 * i));
  pen.putImageData(image, 0, 0);
}

export function showAnswer({ answer, probability, best, ends }, truth) {
  const orders = ends === "at once" ? "" : ", summed over all label orders";
  showChips($("answer"), answer);
  $("probability").replaceChildren(
    ...(probability === null
      ? ["This model gives no probability."]
      : [make("strong", {}, percent(probability)), ` probability${orders}.`]),
  );
  $("verdict").hidden = truth === null;
  if (truth !== null) {
    const right = inWords(counted(truth)) === inWords(answer);
    $("verdict").className = `verdict ${right ? "good" : "bad"}`;
    const wrong = `✗ Wrong: the image shows ${truth.join(", ")}.`;
    $("verdict").textContent = right ? "✓ Correct: this is what the image shows." : wrong;
  }
  $("better").hidden = best.length === 0 || best[0].answer;
  $("best").replaceChildren(
    ...best.map(({ multiset, probability: p, answer: ours }) => {
      const fill = make("div", { className: "fill" });
      fill.style.width = `${100 * p}%`;
      const name = make("span", { className: "name" }, briefly(multiset));
      const line = make("div", { className: "line" }, name, make("span", { className: "share" }, percent(p)));
      return make("li", { className: ours ? "named" : "" }, line, make("div", { className: "track" }, fill));
    }),
  );
}
