// The panel of the workers: ranks, stragglers, bytes, staleness, compression and memory.
"use strict";

// ---- Ranks -----------------------------------------------------------------------------------

const AXES = ["data", "pipeline", "tensor", "strategy"];

const RANK_COLUMNS = [
  ["rank", (rank) => rank.rank, String, false],
  ["busy", (rank) => rank.busy_share, percent, false],
  ["exposed per step", (rank) => rank.per_step[0], seconds, true],
  ["straggler wait per step", (rank) => rank.per_step[1], seconds, true],
  ...AXES.map((axis, index) => [`${axis} sent`, (rank) => rank.sent_bytes[index], sentBytes, true]),
  ["memory", (rank) => rank.resident_bytes, memoryBytes, true],
  ["device memory", (rank) => rank.device_bytes, memoryBytes, true],
  ["clock", (rank) => rank.clock_hertz, (value) => value === null ? NONE : digits(value / 1e9) + " GHz", false],
  ["throttled", (rank) => rank.throttle_count, (value) => value === null ? NONE : String(value), true],
  ["missed steps", (rank) => rank.missed_steps, String, true],
];

/** Class of a share from 0 to 1. */
const heat = (share) => share > 0 ? "heat" + Math.max(1, Math.min(5, Math.ceil(share * 5))) : "";

function showRanks() {
  const { ranks } = state.details;
  const table = byId("ranks");
  if (ranks.length === 0) {
    table.replaceChildren(row([make("td", { class: "text" }, "No counters yet: ranks exchange them at evaluations.")]));
    return;
  }
  const columns = RANK_COLUMNS.filter(([name, of]) => name === "rank" || ranks.some((rank) => of(rank)));
  const { column, descending } = state.sort;
  const [, key] = columns[Math.min(column, columns.length - 1)];
  const sorted = [...ranks].sort((a, b) => (key(a) - key(b)) * (descending ? -1 : 1));
  const head = columns.map(([name], index) => {
    const button = make("button", { type: "button" }, name, index === column ? (descending ? " ▼" : " ▲") : "");
    button.addEventListener("click", () => {
      state.sort = { column: index, descending: index === column ? !descending : index > 0 };
      showRanks();
      byId("ranks").querySelectorAll("th button")[index].focus();
    });
    const order = index === column ? (descending ? "descending" : "ascending") : false;
    return make("th", { scope: "col", "aria-sort": order }, button);
  });
  const limits = columns.map(([, of]) => {
    const values = ranks.map(of).filter((value) => value !== null).sort((a, b) => a - b);
    const median = values[values.length >> 1];
    return [median, Math.max(...values.map((value) => Math.abs(value - median)))];
  });
  const body = sorted.map((rank) => make("tr", {}, ...columns.map(([, of, format, isCost], index) => {
    const value = of(rank);
    if (index === 0) return make("th", { scope: "row" }, format(value));
    const [median, most] = limits[index];
    // Only what differs from the median by a tenth is worth a look.
    const distance = Math.abs(value - median);
    const share = distance > 0.1 * Math.abs(median) ? distance / most : 0;
    return make("td", { class: isCost && value !== null ? heat(share) : null }, format(value));
  })));
  table.replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
}

/** A bar a row; the kind of its colours is a series (`f`) or a part of memory (`m`). */
function bars(rows, format, kind = "f") {
  const most = Math.max(...rows.map(({ parts }) => parts.reduce((sum, [, value]) => sum + value, 0)), 1e-300);
  return make("ul", { class: "bars" }, ...rows.map(({ name, parts, note }) => {
    const sum = parts.reduce((all, [, value]) => all + value, 0);
    const track = make("span", { class: "track", "aria-hidden": "true" }, ...parts.map(([title, value, style]) => {
      const part = make("span", { class: kind + style % 7, title: `${title}: ${format(value)}` });
      part.style.width = 100 * value / most + "%";
      return part;
    }));
    return make("li", {}, make("span", {}, name), track, make("span", { class: "value" }, format(sum), note ? " " + note : ""));
  }));
}

function legendOf(names, kind = "f") {
  return make("ul", { class: "legend" }, ...names.map((name, index) =>
    make("li", {}, make("span", { class: `block ${kind}${index % 7}` }), name)));
}

function showTraffic() {
  const { ranks, info } = state.details;
  const sums = AXES.map((axis, index) => [axis, ranks.reduce((sum, rank) => sum + rank.sent_bytes[index], 0)]);
  const used = sums.filter(([, value]) => value > 0);
  const step = ranks.length > 0 ? Math.max(...ranks.map((rank) => rank.step)) : 0;
  const planned = info.planned_wire_bytes !== null && info.planned_wire_bytes !== undefined
    ? `Planned: ${sentBytes(info.planned_wire_bytes)} per step over all ranks.` : "";
  byId("traffic").replaceChildren(
    used.length === 0 ? make("p", { class: "hint" }, "Nothing was sent yet.")
      : bars(used.map(([axis, value], index) => ({ name: axis, parts: [[axis, value, index]] })), sentBytes),
    make("p", { class: "hint" }, used.length === 0 ? planned : `All ranks together, up to step ${step} of this attempt. ${planned}`));
}

/** Largest group whose matrix has room for numbers in its cells. */
const MAX_NUMBERS = 16;

function showMatrix() {
  const matrix = state.planned && state.planned.matrix;
  const area = byId("matrix");
  if (matrix && state.fetched.matrix) return;
  byId("matrix-note").textContent = matrix
    ? `Bytes of a step by sender (row) and receiver (column), as the step program plans them. ${state.planned.matrix_note || ""}`
    : state.plannedReason || "Not computed yet.";
  area.hidden = !matrix;
  if (!matrix) return;
  state.fetched.matrix = true;
  const most = Math.max(...matrix.flat(), 1);
  if (matrix.length > MAX_NUMBERS) {
    area.replaceChildren(pictureOf(matrix, most), largestPairs(matrix));
    return;
  }
  const head = row(["", ...matrix.map((_, rank) => String(rank))], "th");
  const body = matrix.map((values, rank) => make("tr", {}, make("th", { scope: "row" }, String(rank)),
    ...values.map((value) => make("td", { class: heat(value / most) || null }, value === 0 ? "" : sentBytes(value)))));
  area.replaceChildren(make("table", { class: "matrix" }, make("thead", {}, head), make("tbody", {}, ...body)));
}

/** Values as a map on a canvas: a cell a value, fuller for more. `null` stays empty. */
function paintMap(canvas, rows, { cellWidth, cellHeight, left = 0, top = 0, width, height, low, high }) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const heatColour = style.getPropertyValue("--heat").trim();
  const gap = cellWidth > 5 && cellHeight > 5 ? 1 : 0;
  rows.forEach((values, row) => values.forEach((value, column) => {
    if (value === null) return;
    const share = high > low ? (value - low) / (high - low) : 0;
    context.fillStyle = `rgba(${heatColour}, ${(0.06 + 0.94 * Math.max(0, Math.min(1, share))).toFixed(3)})`;
    context.fillRect(left + column * cellWidth, top + row * cellHeight, cellWidth - gap, cellHeight - gap);
  }));
  return { context, colour: (name) => style.getPropertyValue("--" + name).trim() };
}

/** A matrix as a picture: a square a pair, fuller for more bytes. */
function pictureOf(matrix, most) {
  const size = 9;
  const canvas = make("canvas", { class: "matrix-picture", role: "img",
    "aria-label": "Communication matrix; the table below has its largest pairs" });
  const edge = matrix.length * size;
  const rows = matrix.map((values) => values.map((value) => value === 0 ? null : value));
  paintMap(canvas, rows, { cellWidth: size, cellHeight: size, width: edge, height: edge, low: 0, high: most });
  canvas.style.height = "auto";
  return canvas;
}

function largestPairs(matrix) {
  const pairs = matrix.flatMap((values, from) => values.map((value, to) => [from, to, value]))
    .filter(([, , value]) => value > 0).sort((a, b) => b[2] - a[2]);
  const shown = pairs.slice(0, 40).map(([from, to, value]) => row([String(from), String(to), sentBytes(value)]));
  return make("details", {}, make("summary", {}, `Largest of ${pairs.length} pairs`),
    make("table", {}, make("thead", {}, row(["from rank", "to rank", "bytes"], "th")), make("tbody", {}, ...shown)));
}

/** Asynchronous updates: how many steps old the weights were that their gradients belong to. */
function showStaleness() {
  const all = Object.entries(state.details.staleness);
  byId("staleness-title").hidden = all.length === 0;
  byId("staleness").replaceChildren(...(all.length === 0 ? [] : [bars(all.map(([steps, gradients]) =>
    ({ name: `${steps} update${steps === "1" ? "" : "s"} old`, parts: [["gradients", gradients, 0]] })), digits)]));
}

/** Compressed gradients: their bytes beside those without, and what was lost. */
function showCompression() {
  const { compressed } = state.details;
  byId("compression-title").hidden = !compressed;
  if (!compressed) { byId("compression").replaceChildren(); return; }
  const { dense_bytes: dense, message_bytes: message, delta, residual_norm: residual, step } = compressed;
  byId("compression").replaceChildren(
    bars([{ name: "uncompressed", parts: [["uncompressed", dense, 0]] },
      { name: "compressed", parts: [["compressed", message, 1]] }], sentBytes),
    make("p", { class: "hint" }, `Gradients of a rank at step ${digits(step)}: ${digits(dense / message)} times smaller. `
      + `Error: ${percent(delta)} of the squared norm; mean norm of the residuals: ${digits(residual)}. `
      + "The curve of the error is on the tab Training."));
}

/** Parts that the plan and the engine name alike. */
const MEMORY_PARTS = ["weights", "gradients", "optimizer", "activations", "buffers"];
/** Most ranks with bars. */
const MAX_BARS = 16;

function showMemory() {
  const { ranks, info } = state.details;
  const planned = info.planned_memory || [];
  const measured = new Map(ranks.filter((rank) => rank.memory).map((rank) => [rank.rank, rank.memory]));
  const names = planned.length > 0 ? planned[0].parts.map(([name]) => name) : MEMORY_PARTS;
  const numbers = planned.length > 0 ? planned.map(({ rank }) => rank) : [...measured.keys()];
  const partsOf = (parts) => parts.map(([name, value]) => [name, value, names.indexOf(name)]);
  const rows = numbers.slice(0, MAX_BARS).flatMap((rank) => {
    const plan = planned.find((it) => it.rank === rank);
    const held = measured.get(rank);
    return [plan && { name: `rank ${rank} planned`, parts: partsOf(plan.parts) },
      held && { name: `rank ${rank} measured`, parts: partsOf(MEMORY_PARTS.map((name) => [name, held[name]])) }].filter(Boolean);
  });
  const children = [];
  if (rows.length > 0) {
    children.push(legendOf(names, "m"), bars(rows, memoryBytes, "m"));
    if (measured.size === 0) children.push(make("p", { class: "hint" }, "Ranks say at evaluations what they hold."));
    if (numbers.length > MAX_BARS) children.push(make("p", { class: "hint" }, `${numbers.length - MAX_BARS} more ranks`));
    const table = make("table");
    const details = make("details", {}, make("summary", {}, "Table of memory"), table);
    // Filled when it is opened: it has two rows a rank.
    details.addEventListener("toggle", () => table.replaceChildren(make("thead", {}, row(["rank", ...names], "th")),
      make("tbody", {}, ...rows.map(({ name, parts }) => row([make("th", { scope: "row" }, name), ...names.map((part) => {
        const found = parts.find(([of]) => of === part);
        return found ? memoryBytes(found[1]) : NONE;
      })])))));
    children.push(details);
  }
  const most = Math.max(0, ...ranks.map((rank) => rank.resident_bytes || 0));
  const process = [];
  if (info.planned_process_bytes) process.push({ name: "process, planned peak", parts: [["planned", info.planned_process_bytes, 0]] });
  if (most > 0) process.push({ name: "process, measured", parts: [["measured", most, 1]] });
  if (process.length > 0) children.push(make("h4", {}, "Largest process"), bars(process, memoryBytes));
  if (children.length === 0) children.push(make("p", { class: "hint" }, "No plan for this recipe and no measurement yet."));
  byId("memory").replaceChildren(...children);
}

// ---- Stragglers --------------------------------------------------------------------------------

/** Ranks over evaluations. */
class StragglerMap {
  constructor(root) {
    this.canvas = make("canvas", { role: "img" });
    this.readout = make("output");
    this.figure = make("figure", {}, make("figcaption", {}, make("span", {}, "Ranks over evaluations"), this.readout), this.canvas);
    this.figure.hidden = true;
    root.append(this.figure);
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
  }

  show(map, rows, format) {
    Object.assign(this, { map, rows, format });
    const known = rows.flat().filter((value) => value !== null);
    this.figure.hidden = known.length === 0;
    if (this.figure.hidden) return;
    this.low = Math.min(...known);
    this.high = Math.max(...known);
    const means = rows.map((values) => {
      const found = values.filter((value) => value !== null);
      return found.reduce((sum, value) => sum + value, 0) / Math.max(1, found.length);
    });
    const of = (value) => `rank ${map.ranks[means.indexOf(value)]} (${format(value)})`;
    this.summary = `least: ${of(Math.min(...means))}, most: ${of(Math.max(...means))}`;
    this.readout.textContent = this.summary;
    this.canvas.setAttribute("aria-label", `Map of ${map.ranks.length} ranks over ${map.steps.length} evaluations; ${this.summary}`);
    this.redraw();
  }

  redraw() {
    if (this.figure.hidden) return;
    const width = this.figure.clientWidth - 32;
    if (width <= 0) return;
    const { ranks, steps } = this.map;
    this.left = 44;
    this.cellHeight = ranks.length > 32 ? 6 : 14;
    this.cellWidth = Math.min(28, (width - this.left) / steps.length);
    this.top = 6;
    const height = this.top + ranks.length * this.cellHeight + 22;
    const { left, top, cellWidth, cellHeight, low, high } = this;
    const { context, colour } = paintMap(this.canvas, this.rows, { cellWidth, cellHeight, left, top, width, height, low, high });
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour("soft");
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = Math.ceil(14 / cellHeight);
    ranks.forEach((rank, at) => { if (at % every === 0) context.fillText(String(rank), left - 6, top + (at + 0.5) * cellHeight); });
    context.textAlign = "left";
    const labels = Math.max(1, Math.ceil(70 / cellWidth));
    steps.forEach((step, at) => {
      const x = left + at * cellWidth;
      if (at % labels === 0 && x < width - 40) context.fillText(digits(step), x, height - 9);
    });
  }

  move(event) {
    const box = this.canvas.getBoundingClientRect();
    const rank = Math.floor((event.clientY - box.top - this.top) / this.cellHeight);
    const column = Math.floor((event.clientX - box.left - this.left) / this.cellWidth);
    const value = this.rows[rank] && this.rows[rank][column];
    this.readout.textContent = value === undefined || value === null ? this.summary
      : `rank ${this.map.ranks[rank]}, step ${digits(this.map.steps[column])}: ${this.format(value)}`;
  }
}

const stragglerMap = new StragglerMap(byId("stragglers"));

function showStragglers() {
  const map = state.stragglers;
  if (!map) return;
  const figure = byId("straggler-figure").value;
  stragglerMap.show(map, map[figure], figure === "busy_share" ? percent : seconds);
}
