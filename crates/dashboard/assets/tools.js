// What the pages of the planner and the lab share: sliders, requests one after the other, drawings.
"use strict";

const stateLine = byId("state");

function tell(kind, text) {
  stateLine.className = kind;
  stateLine.textContent = text;
}

// ---- Settings ----------------------------------------------------------------------------------

/** Places of a slider. */
const PLACES = 200;

/** Values of a slider over a range; wide ranges are logarithmic. */
function placesOf({ min, max, value, isWhole }) {
  // Below the first place of a logarithmic slider there is only the minimum.
  const low = min > 0 ? min : Math.max(value, max * 1e-9) / 1000;
  const isLog = max / low > 100;
  const at = (place) => {
    const share = place / PLACES;
    const exact = isLog ? low * (max / low) ** share : min + share * (max - min);
    return isWhole ? Math.round(exact) : Number(exact.toPrecision(3));
  };
  const all = [min, value, max];
  for (let place = 1; place < PLACES; place += 1) all.push(at(place));
  const inside = all.filter((number) => number >= min && number <= max);
  return [...new Set(inside)].sort((one, other) => one - other);
}

/** Powers of two, which divide among ranks. */
const powersOfTwo = (most) => Array.from({ length: Math.log2(most) + 1 }, (_, power) => 2 ** power);

/** A slider over values; `show` makes a text of one. */
function slider({ name, title, hint, values, value, show, onInput }) {
  const nearest = (number) => values.reduce((best, one, at) =>
    Math.abs(one - number) < Math.abs(values[best] - number) ? at : best, 0);
  const range = make("input", { type: "range", id: "set-" + name, min: 0, max: values.length - 1, step: 1 });
  const output = make("output", { for: "set-" + name });
  const get = () => values[Number(range.value)];
  const update = () => {
    output.textContent = show(get());
    range.setAttribute("aria-valuetext", show(get()));
  };
  const set = (number) => { range.value = String(nearest(number)); update(); };
  range.addEventListener("input", () => { update(); onInput(); });
  set(value);
  const label = make("label", { class: "setting", title: hint }, make("span", {}, title), output, range);
  return { element: label, name, get, set, isDefault: () => get() === value };
}

/** A choice between names. */
function choice({ name, title, hint, values, value, onInput }) {
  const select = make("select", { id: "set-" + name }, ...values.map(([key, text]) => make("option", { value: key }, text)));
  select.value = value;
  select.addEventListener("change", onInput);
  const label = make("label", { class: "setting", title: hint }, make("span", {}, title), select);
  return { element: label, name, get: () => select.value, set: (to) => { select.value = to; },
    isDefault: () => select.value === value };
}

// ---- Requests ----------------------------------------------------------------------------------

/**
 * Asks one question at a time; of those that come meanwhile only the last counts. Quiet ones are
 * beside the answer that the page waits for.
 */
class Questions {
  constructor(onAnswer, isQuiet = false) { Object.assign(this, { onAnswer, isQuiet, pending: null, next: null }); }

  tell(kind, text) { if (!this.isQuiet) tell(kind, text); }

  ask(path) {
    if (this.pending) { this.next = path; return; }
    this.run(path);
  }

  async run(path) {
    this.pending = path;
    this.tell("", "computing");
    const began = performance.now();
    try {
      const answer = await get(path);
      // An answer that a newer question replaces is still drawn: the page follows a slider.
      this.onAnswer(answer, path);
      this.tell("live", `computed in ${seconds((performance.now() - began) / 1000)}`);
    } catch (error) {
      this.tell("lost", error.message);
    }
    this.pending = null;
    const next = this.next;
    this.next = null;
    if (next && next !== path) this.run(next);
  }
}

// ---- Drawings ----------------------------------------------------------------------------------

/** An SVG of our own program as an element; the colours follow the page by the style sheet. */
function drawing(svg) {
  const parsed = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
  const element = document.importNode(parsed, true);
  const title = element.querySelector("text");
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", title ? title.textContent : "chart");
  element.classList.add("drawing");
  return element;
}

const drawings = (all) => all.filter(Boolean).map((svg) => make("figure", {}, drawing(svg)));

/** Saves a file. */
function save(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Saves an SVG as a picture of points, twice as large as drawn. */
async function savePng(name, svg) {
  const box = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement.getAttribute("viewBox");
  const [, , width, height] = box.split(" ").map(Number);
  const sized = svg.replace("<svg ", `<svg width="${2 * width}" height="${2 * height}" `);
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(sized);
  await image.decode();
  const canvas = make("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0);
  const blob = await new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
  save(name, blob);
}

function fillTable(table, columns, rows, isText) {
  table.replaceChildren(
    make("thead", {}, row(columns.map((column, at) => isText(at) ? textHead(column) : column), "th")),
    make("tbody", {}, ...rows.map((cells) => row(cells.map((cell, at) =>
      isText(at) ? make("td", { class: "text" }, cell) : cell)))));
}
