// What all pages share: elements, numbers, palette, requests.
"use strict";

// ---- Elements ----------------------------------------------------------------------------------

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; texts never become markup. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function row(cells, cell = "td") {
  return make("tr", {}, ...cells.map((value) =>
    value instanceof Node ? value : make(cell, cell === "th" ? { scope: "col" } : {}, value)));
}

/** Head of a column of texts. */
const textHead = (name) => make("th", { scope: "col", class: "text" }, name);

/** Waits until what was drawn so far is on the screen, so that the next piece has a frame of its own. */
const nextFrame = () => new Promise((done) => { requestAnimationFrame(() => setTimeout(done)); });

// ---- Numbers -----------------------------------------------------------------------------------

const MINUS = "\u2212";
const NONE = "\u2013";

/** Three significant digits, or more where the number is whole. */
function digits(value, count = 3) {
  if (value === null || value === undefined) return NONE;
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) {
    return value.toExponential(count - 1).replace("e-", "e" + MINUS).replace("e+", "e");
  }
  // By hand: the first number that the browser formats for a language costs it a frame.
  if (size >= 1000) return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  return String(Number(value.toPrecision(count)));
}

function scaled(value, base, units) {
  if (value === null || value === undefined) return NONE;
  let unit = 0;
  while (Math.abs(value) >= base && unit + 1 < units.length) { value /= base; unit += 1; }
  return (Math.abs(value) >= 100 ? Math.round(value) : Number(value.toPrecision(3))) + " " + units[unit];
}

const rate = (value) => value === null || value === undefined ? NONE
  : scaled(value, 1000, ["", "k", "M", "G"]).trim();
const sentBytes = (value) => scaled(value, 1000, ["B", "kB", "MB", "GB", "TB", "PB"]);
const memoryBytes = (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const percent = (value) => value === null || value === undefined ? NONE : (100 * value).toPrecision(3) + " %";

function seconds(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return digits(value * 1e6) + " µs";
  if (size < 1) return digits(value * 1e3) + " ms";
  if (size < 120) return digits(value) + " s";
  if (size < 7200) return digits(value / 60) + " min";
  if (size < 172800) return digits(value / 3600) + " h";
  return digits(value / 86400) + " d";
}

// ---- Palette -----------------------------------------------------------------------------------

const DASHES = ["", "8 4", "2 3", "10 3 2 3", "5 5", "12 4", "1 4"];

function swatch(style) {
  return draw("svg", { class: "swatch", viewBox: "0 0 26 8", "aria-hidden": "true" },
    draw("line", { x1: 0, x2: 26, y1: 4, y2: 4, class: "curve k" + style % 7, "stroke-width": 2.5,
      "stroke-dasharray": DASHES[style % 7] }));
}

// ---- Requests ----------------------------------------------------------------------------------

async function get(path) {
  const response = await fetch(path, { headers: { accept: "application/json" } });
  const value = await response.json().catch(() => ({ reason: response.statusText }));
  if (!response.ok) throw new Error(value.reason || response.statusText);
  return value;
}
