// The page: choice of model and image, and playback of the prediction's steps.

import { Pad } from "./draw.js";
import { $, Bars, Moments, counted, inWords, make, percent, showAnswer, showChips, showCounts, showHeat } from "./show.js";

const PAUSE = 700; // milliseconds from showing the bars to emitting the label, and from there to the next step
const still = matchMedia("(prefers-reduced-motion: reduce)");

const state = {
  maxBytes: 0,
  models: [],
  model: null,
  picture: null, // the current image: { image, caption, sample }
  result: null,
  step: 0,
  timer: 0,
  latest: 0, // number of the latest request: responses to older ones are dropped
};

// Requests to the server

async function request(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("The server does not respond. Is multiset demo still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  if (response.status === 503) throw new Error("The server is busy. Try again in a moment.");
  const unknown = `The server failed with status ${response.status}.`;
  throw new Error(typeof body.detail === "string" ? body.detail : unknown);
}

function fail(message) {
  $("error").textContent = message;
  $("error").hidden = false;
}

async function predict(picture, { follow = true } = {}) {
  const { image } = picture;
  const mine = ++state.latest;
  $("error").hidden = true;
  if (image.size > state.maxBytes) {
    fail(`This file is too large. The limit is ${state.maxBytes / 1e6} MB.`);
    return;
  }
  $("work").setAttribute("aria-busy", "true");
  try {
    const result = await request(`api/predict?model=${encodeURIComponent(state.model.name)}`, {
      method: "POST",
      headers: { "Content-Type": image.type || "application/octet-stream" },
      body: image,
    });
    if (mine !== state.latest) return;
    state.picture = picture;
    show(result);
    const below = $("answer-title").getBoundingClientRect().top > innerHeight - 120;
    if (follow && below) $("answer-title").scrollIntoView({ behavior: still.matches ? "auto" : "smooth" });
  } catch (error) {
    if (mine === state.latest) fail(error.message);
  } finally {
    if (mine === state.latest) $("work").setAttribute("aria-busy", "false");
  }
}

// Choice of model and image

function chooseModel(name) {
  const model = state.models.find((one) => one.name === name);
  state.model = model;
  const names = [...model.classes];
  while (names.length > 3 && names.join(", ").length > 50) names.pop();
  const more = model.more_classes + model.classes.length - names.length;
  if (more) names.push(`${more} more`);
  const size = model.fixed ? `exactly ${model.max_size}` : `up to ${model.max_size}`;
  const right = (100 * model.exact_match).toFixed(1);
  const worth = model.exact_match === null ? "" : `Exact match on test images: ${right} %.`;
  const how = {
    policy: "A policy emits one label after another.",
    counts: "A head predicts the count of each label in one pass.",
    shares: "A head predicts all labels in one pass.",
  }[model.kind];
  const expects = model.dark ? " It was trained on light objects on a dark background." : "";
  $("about").textContent = `Predicts ${size} labels from: ${names.join(", ")}. ${how}${expects} ${worth}`;
  $("samples-source").textContent = model.from_own_data ? "from the data of this run" : "from MNIST's test digits";
  $("stage").classList.toggle("colour-model", model.channels === 3);
  $("colour-field").hidden = model.channels === 1;
  pad.colours(...(model.channels === 1 ? ["#000000", "#ffffff"] : ["#ffffff", $("colour").value]));
  $("samples-block").hidden = model.samples.length === 0;
  $("samples").replaceChildren(
    ...model.samples.map((sample, i) => {
      const alt = `Sample ${i + 1}: ${sample.labels.join(", ")}`;
      const picture = make("img", { src: sample.file, alt, width: 64, height: 64 });
      const button = make("button", { type: "button" }, picture);
      button.addEventListener("click", () => takeSample(sample));
      return make("li", {}, button);
    }),
  );
  press(state.picture?.sample);
}

function press(sample = null) {
  state.model.samples.forEach(({ file }, i) => {
    $("samples").children[i].firstChild.setAttribute("aria-pressed", String(file === sample));
  });
}

async function takeSample({ file }, options) {
  try {
    const response = await fetch(file);
    take({ image: await response.blob(), caption: "The sample", sample: file }, options);
  } catch {
    fail("The sample could not be loaded. Is multiset demo still running?");
  }
}

function takeFile(file) {
  if (file) take({ image: file, caption: file.name || "The image" });
}

function take(picture, options) {
  drawing(false);
  predict(picture, options);
}

async function readDrawing() {
  if (!pad.empty) predict({ image: await pad.image(), caption: "The drawing" });
}

function drawing(on) {
  $("draw").setAttribute("aria-pressed", String(on));
  for (const id of ["pad", "tools"]) $(id).hidden = !on;
  showPicture();
  if (on) $("pad").focus({ preventScroll: true });
}

const draws = () => $("draw").getAttribute("aria-pressed") === "true";

function showPicture() {
  const { side } = state.model;
  $("seen").hidden = draws() || state.result === null;
  $("invitation").hidden = draws() || state.result !== null;
  const heat = !draws() && state.result?.places;
  $("heat-field").hidden = !heat;
  $("heat").hidden = !heat || !$("heat-on").checked;
  if (heat) showHeat($("heat"), state.result.places);
  const caption = state.picture ? `${state.picture.caption} at ${side} × ${side} pixels` : "";
  $("caption").textContent = draws() ? drawingHint() : caption;
}

function drawingHint() {
  const { fixed, max_size: most, classes, more_classes: more } = state.model;
  const digits = !more && classes.every((name) => /^\d$/.test(name));
  return `Draw ${fixed ? "" : "up to "}${most} ${digits ? "separate digits" : "objects"}.`;
}

const pad = new Pad($("pad"), $("cursor"), {
  changed: (empty) => ["undo", "clear", "read"].forEach((id) => ($(id).disabled = empty)),
  done: readDrawing,
});

// The steps

let bars = null;
let moments = null;

function show(result) {
  const { sample } = state.picture;
  // Known only for the model's own samples: another model may have other classes.
  const truth = state.model.samples.find(({ file }) => file === sample)?.labels ?? null;
  state.result = result;
  $("waiting").hidden = true;
  $("result").hidden = false;
  const atOnce = result.ends === "at once";
  $("work-title").textContent = !atOnce ? "One label at a time" : result.counts.length ? "How many of each" : "In one pass";
  for (const id of ["so-far", "entropy-block", "player"]) $(id).hidden = atOnce;
  $("bars").hidden = result.counts.length > 0;
  showCounts($("counts"), result);
  $("hints").hidden = result.hints.length === 0;
  $("hints").replaceChildren(...result.hints.map((text) => make("li", {}, text)));
  $("seen").src = result.seen;
  $("seen").alt = truth ? `Image of ${truth.join(", ")}` : "The image as the model sees it";
  press(sample);
  showPicture();
  bars = new Bars($("bars"), result);
  moments = new Moments(result, goTo);
  showAnswer(result, truth);
  if (still.matches || atOnce) goTo(result.steps.length - 1);
  else play();
}

function play() {
  pause();
  $("play").textContent = "Skip";
  const next = (t, chosen) => {
    showStep(t, chosen);
    if (t === state.result.steps.length - 1 && chosen) finish();
    else state.timer = setTimeout(next, PAUSE, chosen ? t + 1 : t, !chosen);
  };
  next(0, false);
}

function pause() {
  clearTimeout(state.timer);
  $("play").textContent = "Replay";
}

function goTo(t) {
  pause();
  showStep(t, true);
  if (t === state.result.steps.length - 1) finish();
}

function finish() {
  pause();
  const { answer, probability } = state.result;
  const worth = probability === null ? "" : `, probability ${percent(probability)}`;
  $("status").textContent = `Answer: ${inWords(answer)}${worth}`;
}

function showStep(t, chosen) {
  const { steps, classes, ends } = state.result;
  const last = t === steps.length - 1 && chosen;
  state.step = t;
  bars.show(steps[t], chosen, ends);
  moments.show(t, chosen);
  const named = steps.slice(0, t + (chosen ? 1 : 0)).filter(moments.isLabel).map((step) => step.named);
  const newest = chosen && moments.isLabel(steps[t], t) ? classes[steps[t].named] : null;
  const running = counted(named.sort((a, b) => a - b).map((i) => classes[i]));
  showChips($("running"), ends === "at once" ? state.result.answer : running, newest);
  $("says").replaceChildren(...says(t, chosen, newest));
  const { entropy, named: label } = steps[t];
  const among = ends === "at once" && state.result.probability !== null ? "multisets" : "labels";
  const unsure = `${entropy.toFixed(2)} nats, as for ${Math.exp(entropy).toFixed(1)} equally likely ${among}`;
  $("unsure").textContent = label === null && chosen && ends !== "at once" ? "" : unsure;
  $("back").disabled = t === 0;
  $("on").disabled = last;
  $("answer-block").hidden = !last;
  $("best-block").hidden = !last || state.result.best.length === 0;
  $("pending").hidden = last;
  $("pending").textContent = named.length ? `So far: ${inWords(running)}` : "Shown after the last step.";
}

function says(t, chosen, newest) {
  const { steps, ends } = state.result;
  const place = `Step ${t + 1} of ${steps.length}. `;
  if (ends === "at once") {
    if (!state.result.counts.length) return ["Share of each label among all labels."];
    return ["Probability of 0, 1, 2, ... of each label; the predicted count is framed."];
  }
  if (newest !== null) return [make("span", {}, place, "The policy emits ", make("strong", {}, newest), ".")];
  if (!chosen) return [make("span", {}, place, "Distribution over the next label.")];
  const reasons = {
    policy: "The stop head ends the sequence.",
    end: "The policy emits END.",
    full: "The maximum size is reached.",
  };
  return [make("span", {}, place, reasons[ends])];
}

// Event handlers

$("model").addEventListener("change", ({ target }) => {
  chooseModel(target.value);
  showPicture();
  const { samples } = state.model;
  const sample = state.picture?.sample;
  const foreign = sample && samples.length > 0 && !samples.some(({ file }) => file === sample);
  if (foreign && !draws()) takeSample(samples[0], { follow: false }); // that sample may show other classes
  else if (state.picture) predict(state.picture, { follow: false });
});
$("file").addEventListener("change", ({ target }) => {
  takeFile(target.files[0]);
  target.value = "";
});
$("draw").addEventListener("click", () => drawing(!draws()));
$("heat-on").addEventListener("change", showPicture);
$("undo").addEventListener("click", () => pad.undo());
$("clear").addEventListener("click", () => pad.clear());
$("read").addEventListener("click", readDrawing);
$("colour").addEventListener("input", ({ target }) => (pad.ink = target.value));
$("play").addEventListener("click", ({ target }) => {
  if (target.textContent === "Skip") goTo(state.result.steps.length - 1);
  else play();
});
$("back").addEventListener("click", () => goTo(state.step - 1));
$("on").addEventListener("click", () => goTo(Math.min(state.step + 1, state.result.steps.length - 1)));

const isFile = (event) => event.dataTransfer?.types.includes("Files");
document.addEventListener("dragover", (event) => {
  if (!isFile(event)) return;
  event.preventDefault();
  $("stage").classList.add("over");
});
document.addEventListener("dragleave", () => $("stage").classList.remove("over"));
document.addEventListener("drop", (event) => {
  if (!isFile(event)) return;
  event.preventDefault();
  $("stage").classList.remove("over");
  takeFile(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => takeFile(event.clipboardData.files[0]));

try {
  const offered = await request("api/models");
  state.maxBytes = offered.max_bytes;
  state.models = offered.models;
  $("model").replaceChildren(...offered.models.map(({ name }) => make("option", { value: name }, name)));
  chooseModel(offered.models[0].name);
  if (state.model.samples.length) await takeSample(state.model.samples[0], { follow: false });
} catch (error) {
  fail(error.message);
}
