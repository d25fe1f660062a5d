// A drawing area for pointer and keyboard. Strokes are stored so that they can be undone.

const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

export class Pad {
  constructor(canvas, cursor, { changed, done }) {
    this.canvas = canvas;
    this.cursor = cursor;
    this.changed = changed;
    this.pen = canvas.getContext("2d");
    this.side = canvas.width;
    this.paper = "#000000";
    this.ink = "#ffffff";
    this.width = this.side * 0.038; // the stroke width of MNIST's digits
    this.strokes = [];
    this.place = [this.side / 2, this.side / 2]; // position of the keyboard's pen
    this.down = false;
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("pointermove", (event) => this.#go(event));
    canvas.addEventListener("keydown", (event) => this.#key(event, done));
    canvas.addEventListener("focus", () => this.#showCursor());
    canvas.addEventListener("blur", () => this.#lift());
    this.paint();
  }

  get empty() {
    return this.strokes.length === 0;
  }

  undo() {
    this.strokes.pop();
    this.#lift();
    this.paint();
  }

  clear() {
    this.strokes = [];
    this.#lift();
    this.paint();
  }

  colours(paper, ink) {
    if (paper !== this.paper) this.strokes = []; // they could be invisible on the new background
    this.paper = paper;
    this.ink = ink;
    this.paint();
  }

  image() {
    return new Promise((resolve) => this.canvas.toBlob(resolve, "image/png"));
  }

  paint() {
    this.pen.fillStyle = this.paper;
    this.pen.fillRect(0, 0, this.side, this.side);
    Object.assign(this.pen, { lineWidth: this.width, lineCap: "round", lineJoin: "round" });
    for (const { ink, points } of this.strokes) {
      this.pen.strokeStyle = ink;
      this.pen.beginPath();
      this.pen.moveTo(...points[0]);
      for (const point of points) this.pen.lineTo(...point);
      this.pen.stroke();
    }
    this.changed(this.empty);
  }

  #begin(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.#lift();
    this.strokes.push({ ink: this.ink, points: [this.#at(event)] });
    this.paint();
  }

  #go(event) {
    if (!this.canvas.hasPointerCapture(event.pointerId) || this.empty) return;
    this.strokes.at(-1).points.push(...event.getCoalescedEvents().map((moved) => this.#at(moved)), this.#at(event));
    this.paint();
  }

  #at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.side, ((event.clientY - box.top) / box.height) * this.side];
  }

  #key(event, done) {
    if (event.key === "Enter") done();
    else if (event.key === " ") {
      this.down = !this.down;
      if (this.down) this.strokes.push({ ink: this.ink, points: [[...this.place]] });
    } else if (event.key in KEYS) {
      const move = (value, axis) => Math.min(Math.max(value + KEYS[event.key][axis] * this.side * 0.03, 0), this.side);
      this.place = this.place.map(move);
      if (this.down) this.strokes.at(-1).points.push([...this.place]);
    } else return;
    event.preventDefault();
    this.paint();
    this.#showCursor();
  }

  #showCursor() {
    this.cursor.hidden = !this.canvas.matches(":focus-visible");
    this.cursor.classList.toggle("down", this.down);
    [this.cursor.style.left, this.cursor.style.top] = this.place.map((value) => `${(100 * value) / this.side}%`);
  }

  #lift() {
    this.down = false;
    this.cursor.hidden = true;
  }
}
