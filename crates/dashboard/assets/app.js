// The page of a run: it listens for changes, fetches what is visible, and draws it.
"use strict";

// ---- Charts ------------------------------------------------------------------------------------

/** About `count` round values in a range. */
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((it) => it * power).find((it) => it >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) {
    found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  }
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    for (const part of [1, 2, 5]) {
      const at = part * 10 ** power;
      if (at >= low && at <= high) found.push(at);
    }
  }
  return found.length > 8 ? found.filter((at) => /^1e/.test(at.toExponential())) : found;
}

/** Exponential mean of a curve, without the pull of its start. */
function smooth(values, weight) {
  let mean = 0;
  let norm = 0;
  return values.map((value) => {
    mean = weight * mean + (1 - weight) * value;
    norm = weight * norm + (1 - weight);
    return mean / norm;
  });
}

const HEIGHT = 230;
const EDGE = { left: 58, right: 10, top: 8, bottom: 24 };

/** A chart of curves over steps: pointer and keyboard move a cursor and enlarge a range. */
class Chart {
  constructor(title, format, onRange) {
    Object.assign(this, { title, format, onRange, lines: [], cursor: null, from: null, isLog: false, seen: 0 });
    this.readout = make("output");
    this.legend = make("ul", { class: "legend" });
    this.svg = draw("svg", { class: "plot", height: HEIGHT, "aria-hidden": "true" });
    this.area = make("div", { tabindex: "0", role: "slider", "aria-orientation": "horizontal",
      "aria-label": title + " over steps" }, this.svg);
    this.table = make("table");
    this.details = make("details", {}, make("summary", {}, "Table of " + title.toLowerCase()), this.table);
    this.figure = make("figure", {},
      make("figcaption", {}, make("span", {}, title), this.readout), this.legend, this.area, this.details);
    this.details.addEventListener("toggle", () => this.fillTable());
    // The width as laid out: to ask for it while drawing would lay out the page once for each chart.
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width === 0 || width === this.seen) return;
      this.seen = width;
      this.redraw();
    }).observe(this.area);
    this.area.addEventListener("keydown", (event) => this.press(event));
    this.svg.addEventListener("pointermove", (event) => this.move(event));
    this.svg.addEventListener("pointerdown", (event) => this.grab(event));
    this.svg.addEventListener("pointerup", (event) => this.release(event));
    this.svg.addEventListener("pointerleave", () => { if (this.from === null) this.setCursor(null); });
    this.svg.addEventListener("dblclick", () => this.onRange(null));
  }

  /** Lines: name, style, x and y, and raw values where y is smoothed. */
  show(lines, isLog) {
    this.isLog = isLog;
    this.lines = lines.filter((line) => line.x.length > 0);
    this.figure.hidden = this.lines.length === 0;
    if (this.figure.hidden) return;
    this.legend.replaceChildren(...this.lines.map((line) => make("li", {}, swatch(line.style), line.name)));
    this.legend.hidden = this.lines.length < 2;
    this.redraw();
    if (this.details.open) this.fillTable();
  }

  redraw() {
    if (this.lines.length === 0 || this.seen === 0) return;
    const width = Math.max(this.seen, 200);
    this.width = width;
    const xs = this.lines.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
    const [first, last] = [Math.min(...xs), Math.max(...xs)];
    this.first = first;
    this.last = last === first ? first + 1 : last;
    let low = Infinity;
    let high = -Infinity;
    for (const line of this.lines) {
      for (const value of line.raw || line.y) {
        if (this.isLog && value <= 0) continue;
        if (value < low) low = value;
        if (value > high) high = value;
      }
    }
    if (!Number.isFinite(low)) { low = this.isLog ? 0.1 : 0; high = 1; }
    if (low === high) { const by = Math.abs(low) * 0.1 || 1; low -= this.isLog ? low * 0.5 : by; high += by; }
    const place = this.isLog ? Math.log10 : (value) => value;
    const margin = (place(high) - place(low)) * 0.04;
    const [bottom, top] = [place(low) - margin, place(high) + margin];
    const yOf = (value) => {
      const at = HEIGHT - EDGE.bottom - (place(value) - bottom) / (top - bottom) * (HEIGHT - EDGE.bottom - EDGE.top);
      return Math.max(-50, Math.min(HEIGHT + 50, at));
    };
    this.yOf = yOf;
    this.xOf = (step) => EDGE.left + (step - this.first) / (this.last - this.first) * (width - EDGE.left - EDGE.right);
    const parts = [];
    for (const at of this.isLog ? logTicks(low, high) : ticks(low, high, 5)) {
      parts.push(draw("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: yOf(at), y2: yOf(at) }));
      parts.push(draw("text", { x: EDGE.left - 6, y: yOf(at) + 4, "text-anchor": "end" }, this.format(at)));
    }
    for (const at of ticks(this.first, this.last, width / 110)) {
      if (at !== Math.round(at)) continue;
      const anchor = this.xOf(at) > width - 30 ? "end" : "middle";
      parts.push(draw("text", { x: this.xOf(at), y: HEIGHT - 6, "text-anchor": anchor }, digits(at)));
    }
    parts.push(draw("line", { class: "axis", x1: EDGE.left, x2: width - EDGE.right,
      y1: HEIGHT - EDGE.bottom, y2: HEIGHT - EDGE.bottom }));
    for (const line of this.lines) {
      const path = (values) => {
        let text = "";
        for (let index = 0; index < values.length; index += 1) {
          if (this.isLog && values[index] <= 0) continue;
          text += (text ? "L" : "M") + this.xOf(line.x[index]).toFixed(1) + " " + yOf(values[index]).toFixed(1);
        }
        return text;
      };
      if (line.raw) parts.push(draw("path", { class: "curve raw k" + line.style % 7, d: path(line.raw) }));
      parts.push(draw("path", { class: "curve k" + line.style % 7, d: path(line.y),
        "stroke-dasharray": DASHES[line.style % 7] }));
      if (line.x.length < 30) {
        line.x.forEach((step, index) => parts.push(
          draw("circle", { class: "k" + line.style % 7, cx: this.xOf(step), cy: yOf(line.y[index]), r: 2.6 })));
      }
    }
    this.marks = draw("g");
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...parts, this.marks);
    this.drawMarks();
  }

  /** Point of a line at a step or the last one before it. */
  static pointAt(line, step) {
    let [low, high] = [0, line.x.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (line.x[middle] <= step) low = middle + 1; else high = middle;
    }
    return low === 0 ? null : low - 1;
  }

  drawMarks() {
    const parts = [];
    if (this.from !== null && this.cursor !== null) {
      const [a, b] = [this.xOf(this.from), this.xOf(this.cursor)].sort((one, other) => one - other);
      parts.push(draw("rect", { class: "selection", x: a, width: b - a, y: EDGE.top,
        height: HEIGHT - EDGE.bottom - EDGE.top }));
    }
    if (this.cursor !== null) {
      const x = this.xOf(this.cursor);
      parts.push(draw("line", { class: "cursor", x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
    }
    const step = this.cursor === null ? this.last : this.cursor;
    const texts = [];
    for (const line of this.lines) {
      const index = Chart.pointAt(line, step);
      if (index === null) continue;
      const name = this.lines.length > 1 ? line.name + " " : "";
      texts.push(name + this.format((line.raw || line.y)[index]));
      if (this.cursor !== null) {
        parts.push(draw("circle", { class: "k" + line.style % 7, cx: this.xOf(line.x[index]),
          cy: this.yOf(line.y[index]), r: 3.5 }));
      }
    }
    this.marks.replaceChildren(...parts);
    const text = `step ${digits(Math.round(step))}: ${texts.slice(0, 4).join(", ")}`;
    this.readout.textContent = text;
    this.area.setAttribute("aria-valuemin", String(this.first));
    this.area.setAttribute("aria-valuemax", String(this.last));
    this.area.setAttribute("aria-valuenow", String(Math.round(step)));
    this.area.setAttribute("aria-valuetext", text);
  }

  setCursor(step) {
    if (this.lines.length === 0 || this.seen === 0) return;
    this.cursor = step === null ? null : Math.max(this.first, Math.min(this.last, step));
    this.drawMarks();
  }

  stepAt(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
    return Math.round(this.first + Math.max(0, Math.min(1, share)) * (this.last - this.first));
  }

  move(event) { this.setCursor(this.stepAt(event)); }

  grab(event) {
    if (event.button !== 0) return;
    this.svg.setPointerCapture(event.pointerId);
    this.from = this.stepAt(event);
  }

  release(event) {
    const [from, to] = [this.from, this.stepAt(event)];
    this.from = null;
    if (from !== null && Math.abs(this.xOf(from) - this.xOf(to)) > 6) {
      this.onRange([Math.min(from, to), Math.max(from, to)]);
    } else {
      this.drawMarks();
    }
  }

  press(event) {
    const span = this.last - this.first;
    const at = this.cursor === null ? this.last : this.cursor;
    const to = (step) => this.setCursor(Math.round(step));
    const zoom = (factor) => this.onRange([Math.floor(at - span * factor / 2), Math.ceil(at + span * factor / 2)]);
    const actions = {
      ArrowLeft: () => to(at - Math.max(1, span / 50)), ArrowRight: () => to(at + Math.max(1, span / 50)),
      ArrowDown: () => to(at - 1), ArrowUp: () => to(at + 1),
      PageDown: () => to(at - span / 5), PageUp: () => to(at + span / 5),
      Home: () => to(this.first), End: () => to(this.last),
      "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), Escape: () => this.onRange(null),
    };
    if (actions[event.key]) { actions[event.key](); event.preventDefault(); }
  }

  /** The curve as numbers, at thirty steps at most. */
  fillTable() {
    if (!this.details.open || this.lines.length === 0) return;
    const steps = [...new Set(this.lines.flatMap((line) => line.x))].sort((a, b) => a - b);
    const every = Math.max(1, Math.ceil(steps.length / 30));
    const chosen = steps.filter((_, index) => index % every === 0 || index === steps.length - 1);
    const body = chosen.map((step) => row([make("th", { scope: "row" }, String(step)),
      ...this.lines.map((line) => {
        const index = Chart.pointAt(line, step);
        return index === null ? NONE : this.format((line.raw || line.y)[index]);
      })]));
    this.table.replaceChildren(make("thead", {}, row(["step", ...this.lines.map((line) => line.name)], "th")),
      make("tbody", {}, ...body));
  }
}

// ---- State -------------------------------------------------------------------------------------

const state = {
  runs: [], run: null, compared: new Set(), tab: "training", range: null, details: null, planned: null,
  fetched: {}, sort: { column: 0, descending: false },
};

const current = () => state.runs[state.run];

// ---- Overview ----------------------------------------------------------------------------------

function stateName(run) {
  return make("span", { class: "state " + run.state.name }, run.state.name);
}

function stepsText(run) {
  return run.num_steps ? `step ${digits(run.step)} of ${digits(run.num_steps)}` : `step ${digits(run.step)}`;
}

function showRuns() {
  const list = byId("runs");
  // Elements are kept while the list is the same, so that the focus stays where it is.
  while (list.children.length > state.runs.length) list.lastChild.remove();
  state.runs.forEach((run, number) => {
    let item = list.children[number];
    if (!item) {
      const box = make("input", { type: "checkbox" });
      box.addEventListener("change", () => {
        if (box.checked) state.compared.add(number); else state.compared.delete(number);
        showRuns();
        refresh(true);
      });
      const button = make("button", { type: "button" }, make("span", { class: "name" }), make("span", { class: "line" }));
      button.addEventListener("click", () => select(number));
      item = make("li", {}, button, make("label", {}, box));
      list.append(item);
    }
    const [button, label] = item.children;
    button.setAttribute("aria-current", String(number === state.run));
    button.children[0].textContent = run.name;
    const loss = run.loss === null ? "" : `, loss ${run.loss.toFixed(3)}`;
    button.children[1].textContent = `${run.state.name}, ${stepsText(run)}${loss}`;
    const box = label.firstChild;
    box.setAttribute("aria-label", "Compare " + run.name);
    box.checked = number === state.run || state.compared.has(number);
    box.disabled = number === state.run;
    label.hidden = state.runs.length < 2;
  });
}

function showOverview() {
  const run = current();
  document.title = run ? `${run.name} ${run.state.name} · Lockstep` : "Lockstep";
  if (!run) return;
  byId("run-name").replaceChildren(run.name + " ", stateName(run));
  const reason = run.state.reason ? ` ${MINUS} ${run.state.reason}` : "";
  const reading = run.is_read ? "" : "; reading its events";
  byId("run-line").textContent = `${stepsText(run)}${run.layout ? ", " + run.layout : ""}${reason}${reading}`;
  const progress = byId("run-progress");
  progress.max = run.num_steps || 1;
  progress.value = run.step;
  const figures = [
    ["Loss", run.loss === null ? NONE : run.loss.toFixed(4), ""],
    ["Validation loss", run.validation_loss === null ? NONE : run.validation_loss.toFixed(4), ""],
    ["Tokens per second", rate(run.tokens_per_second), "median of 100 steps"],
    ["Step time", seconds(run.step_seconds), "median of 100 steps"],
    ["MFU", percent(run.mfu), "of the peak"],
    ["Remaining", seconds(run.remaining_seconds), "at this speed"],
  ].filter(([, value]) => value !== NONE);
  byId("figures").replaceChildren(...figures.map(([name, value, note]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, note ? make("small", {}, note) : null))));
}

function select(number) {
  if (state.run === number) return;
  Object.assign(state, { run: number, details: null, planned: null, plannedReason: null, spans: null, drawnStep: null, range: null, fetched: {} });
  state.compared.delete(number);
  byId("explain").replaceChildren();
  timeline.reset();
  showRuns();
  showOverview();
  refresh(true);
}

// ---- Curves ------------------------------------------------------------------------------------

/** Charts with their curves: the name of the curve in the data, and on the page. */
const CHARTS = [
  ["Loss", digits4, [["loss", "training"], ["validation_loss", "validation"]]],
  ["Throughput in tokens per second", rate, [["tokens_per_second", "tokens per second"]]],
  ["Learning rate", digits, [["lr", "learning rate"]]],
  ["Gradient norm", digits, [["grad_norm", "gradient norm"]]],
  ["Step time", seconds, [["step_seconds", "step"], ["exposed_seconds", "exposed communication"],
    ["straggler_seconds", "waiting for a rank"], ["data_seconds", "data"]]],
  ["MFU", percent, [["mfu", "MFU"]]],
  ["Resident memory of rank 0", memoryBytes, [["resident_bytes", "resident"]]],
];
const KNOWN = new Set(CHARTS.flatMap(([, , curves]) => curves.map(([name]) => name)));

function digits4(value) { return digits(value, 4); }

const charts = new Map();

function chartOf(title, format) {
  if (!charts.has(title)) {
    const chart = new Chart(title, format, setRange);
    charts.set(title, chart);
    byId("curves").append(chart.figure);
  }
  return charts.get(title);
}

function setRange(range) {
  if (range) range = [Math.max(0, range[0]), Math.max(range[1], range[0] + 1)];
  const run = current();
  const covers = range && run && range[0] <= 1 && range[1] >= run.step;
  state.range = covers ? null : range;
  refresh(true);
}

/** Runs whose curves are drawn: the selected one first. */
function drawnRuns() {
  return [state.run, ...[...state.compared].filter((number) => number !== state.run && state.runs[number])];
}

async function fetchCurves() {
  // The width as last observed: to ask for it here would lay out the page in the middle of a task.
  const width = Math.min(state.width || 460, 700);
  // Four points a column, and a column of two pixels.
  const columns = Math.min(1000, Math.max(100, Math.round(width / 2)));
  const range = state.range ? `&first=${state.range[0]}&last=${state.range[1]}` : "";
  const runs = drawnRuns();
  const answers = await Promise.all(runs.map((number) => get(`/api/runs/${number}/curves?columns=${columns}${range}`)));
  state.curves = runs.map((number, index) => ({ name: state.runs[number].name, curves: answers[index].curves }));
}

/** Draws the charts, one a frame; a later call takes over. */
async function showCurves() {
  if (!state.curves) return;
  const drawing = {};
  state.drawing = drawing;
  const weight = Number(byId("smoothing").value);
  const isLog = byId("log-scale").checked;
  const single = state.curves.length === 1;
  const others = new Set(state.curves.flatMap((run) => Object.keys(run.curves)).filter((name) => !KNOWN.has(name)));
  const all = [...CHARTS, ...[...others].sort().map((name) => [name.replace(/_/g, " "), digits, [[name, name]]])];
  for (const [title, format, curves] of all) {
    const lines = [];
    for (const [place, run] of state.curves.entries()) {
      for (const [index, [name, label]] of curves.entries()) {
        const curve = run.curves[name];
        if (!curve || curve.x.length === 0 || (!single && index > 1)) continue;
        if (name === "data_seconds" && curve.y.every((value) => value === 0)) continue;
        // Of one run the curves differ in style, of several runs the runs do.
        const style = single ? index : place;
        const text = single ? label : `${run.name} ${label}`;
        const isSmooth = weight > 0 && curve.x.length > 40 && !["lr", "validation_loss"].includes(name);
        lines.push({ name: text, style, x: curve.x, y: isSmooth ? smooth(curve.y, weight) : curve.y,
          raw: isSmooth ? curve.y : null });
      }
    }
    chartOf(title, format).show(lines, isLog && title === "Loss");
    await nextFrame();
    if (state.drawing !== drawing) return;
  }
}

function showRange() {
  byId("all-steps").disabled = state.range === null;
  byId("range-text").textContent = state.range ? `steps ${digits(state.range[0])} to ${digits(state.range[1])}` : "";
}

// ---- Step --------------------------------------------------------------------------------------

/** Kind of a task by the words of its action: the name of its colour. */
function kindOf(action) {
  if (action.startsWith("forward")) return "forward";
  if (action.startsWith("backward")) return "backward";
  if (action.startsWith("input gradient")) return "input-gradient";
  if (action.startsWith("weight gradient")) return "weight-gradient";
  if (action.startsWith("recompute")) return "recompute";
  if (/^(send|receive|reduce|gather|tensor collective|agree|push|pull|encode|decode|average|mix)/.test(action)) return "send";
  if (/^(update|direction|gradient norm|unscale)/.test(action)) return "update";
  return "idle";
}

const KINDS = { forward: "forward", backward: "backward", "input-gradient": "input gradient", "weight-gradient": "weight gradient", recompute: "recompute", send: "communication", update: "update", idle: "other" };

/** Kinds in colours that dark text is read on. */
const PALE = new Set(["backward", "input-gradient", "idle"]);

/** Tracks of spans on a canvas, which zooms and moves. */
class Timeline {
  constructor(root) {
    this.tracks = [];
    this.window = null;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.readout = make("output");
    this.area = make("div", { tabindex: "0", role: "group", "aria-roledescription": "timeline",
      "aria-label": "Timeline of a step; the table below has its tasks" }, this.canvas);
    this.table = make("table");
    this.details = make("details", {}, make("summary", {}, "Table of tasks"), make("div", { class: "scroll", tabindex: "0",
      role: "region", "aria-label": "Table of tasks" }, this.table));
    this.details.addEventListener("toggle", () => this.fillTable());
    this.end = 0;
    const legend = make("ul", { class: "legend" }, ...Object.entries(KINDS).map(([kind, name]) => {
      const block = make("span", { class: "block" });
      block.style.background = `var(--${kind})`;
      return make("li", {}, block, name);
    }));
    this.figure = make("figure", {}, make("figcaption", {}, make("span", {}, "Step program"), this.readout),
      legend, this.area, this.details);
    this.figure.hidden = true;
    root.append(this.figure);
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerdown", (event) => { this.grabbed = event.clientX; this.canvas.setPointerCapture(event.pointerId); });
    this.canvas.addEventListener("pointerup", () => { this.grabbed = null; });
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event));
    }, { passive: false });
    this.area.addEventListener("keydown", (event) => {
      const shift = (by) => this.shift(by * (this.window[1] - this.window[0]));
      const actions = { ArrowLeft: () => shift(-0.15), ArrowRight: () => shift(0.15), "+": () => this.zoom(0.6), "=": () => this.zoom(0.6),
        "-": () => this.zoom(1.6), Escape: () => this.reset(), Home: () => this.reset() };
      if (this.window && actions[event.key]) { actions[event.key](); event.preventDefault(); }
    });
  }

  show(tracks) {
    // The kind of a task is found once, not in every picture.
    this.tracks = tracks.filter((track) => track.spans.length > 0).map((track) =>
      ({ ...track, spans: track.spans.map(([start, duration, action]) => [start, duration, action, kindOf(action)]) }));
    this.figure.hidden = this.tracks.length === 0;
    this.end = 0;
    for (const track of this.tracks) for (const [start, duration] of track.spans) this.end = Math.max(this.end, start + duration);
    if (!this.window || this.window[1] === 0 || this.window[1] > this.end * 1.2) this.window = [0, this.end];
    this.redraw();
    this.fillTable();
  }

  reset() {
    this.window = this.tracks.length > 0 ? [0, this.end] : null;
    this.redraw();
  }

  zoom(factor, at) {
    if (!this.window) return;
    const [first, last] = this.window;
    const middle = at === undefined ? (first + last) / 2 : at;
    const least = this.end / 1e5;
    if (factor < 1 && last - first < least) return;
    this.window = [middle - (middle - first) * factor, middle + (last - middle) * factor];
    this.clamp();
  }

  shift(by) { this.window = this.window.map((at) => at + by); this.clamp(); }

  clamp() {
    const span = Math.min(this.window[1] - this.window[0], this.end);
    const first = Math.max(0, Math.min(this.end - span, this.window[0]));
    this.window = [first, first + span];
    this.redraw();
  }

  timeAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - this.left) / (box.width - this.left);
    return this.window[0] + share * (this.window[1] - this.window[0]);
  }

  move(event) {
    if (!this.window) return;
    if (this.grabbed !== null && this.grabbed !== undefined) {
      const width = this.canvas.clientWidth - this.left;
      this.shift((this.grabbed - event.clientX) / width * (this.window[1] - this.window[0]));
      this.grabbed = event.clientX;
      return;
    }
    const box = this.canvas.getBoundingClientRect();
    const track = this.tracks[Math.floor((event.clientY - box.top - 22) / this.height)];
    const at = this.timeAt(event);
    const span = track && track.spans.find(([start, duration]) => at >= start && at <= start + duration);
    this.readout.textContent = span ? `${track.name}: ${span[2]}, ${seconds(span[1])} from ${seconds(span[0])}` : "";
  }

  redraw() {
    if (this.tracks.length === 0 || !this.window || this.figure.hidden) return;
    const width = this.area.clientWidth;
    if (width === 0) return;
    this.height = this.tracks.length > 24 ? 14 : 24;
    this.left = width < 500 ? 78 : 150;
    const height = 22 + this.height * this.tracks.length + 22;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.height = height + "px";
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    const colours = Object.fromEntries(Object.keys(KINDS).map((kind) => [kind, colour(kind)]));
    const [first, last] = this.window;
    const place = (time) => this.left + (time - first) / (last - first) * (width - this.left);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.strokeStyle = colour("grid");
    context.fillStyle = colour("soft");
    for (const at of ticks(first, last, (width - this.left) / 120)) {
      context.beginPath();
      context.moveTo(place(at), 18);
      context.lineTo(place(at), height - 20);
      context.stroke();
      context.textAlign = place(at) > width - 30 ? "right" : "center";
      context.fillText(seconds(at), place(at), height - 9);
    }
    this.tracks.forEach((track, index) => {
      const top = 22 + index * this.height;
      context.textAlign = "right";
      context.fillStyle = colour("ink");
      context.fillText(track.name, this.left - 8, top + this.height / 2, this.left - 10);
      context.save();
      context.beginPath();
      context.rect(this.left, top, width - this.left, this.height);
      context.clip();
      let drawn = -1;
      for (const [start, duration, action, kind] of track.spans) {
        if (start > last || start + duration < first) continue;
        const [x, end] = [place(start), place(start + duration)];
        // Of the spans within a pixel the first is drawn.
        if (end < drawn) continue;
        drawn = Math.ceil(end * ratio) / ratio;
        context.fillStyle = colours[kind];
        context.fillRect(x, top + 2, Math.max(end - x, 0.6), this.height - 4);
        if (end - x > 4) {
          context.strokeStyle = colour("sheet");
          context.strokeRect(x + 0.5, top + 2.5, end - x - 1, this.height - 5);
        }
        if (end - x > 40 && this.height > 16) {
          context.save();
          context.beginPath();
          context.rect(x, top, end - x - 3, this.height);
          context.clip();
          context.textAlign = "left";
          context.fillStyle = colour(PALE.has(kind) ? "on-task" : "sheet");
          context.fillText(action, Math.max(x, this.left) + 4, top + this.height / 2 + 0.5);
          context.restore();
        }
      }
      context.restore();
    });
    byId("step-range").textContent = `${seconds(first)} to ${seconds(last)} of ${seconds(this.end)}`;
  }

  fillTable() {
    if (!this.details.open) return;
    // So many of each track that all together are no more than can be read.
    const each = Math.max(2, Math.floor(400 / this.tracks.length));
    const shown = this.tracks.flatMap((track) => track.spans.slice(0, each).map(([start, duration, action]) =>
      row([make("td", { class: "text" }, track.name), make("td", { class: "text" }, action), seconds(start), seconds(duration)])));
    const hidden = this.tracks.reduce((sum, track) => sum + track.spans.length, 0) - shown.length;
    if (hidden > 0) shown.push(row([make("td", { class: "text", colspan: "4" }, `${hidden} more`)]));
    this.table.replaceChildren(make("thead", {}, row([textHead("track"), textHead("task"), "start", "duration"], "th")), make("tbody", {}, ...shown));
  }
}

const timeline = new Timeline(byId("timeline"));

/** Most tracks of a rank. */
const MAX_QUEUES = 8;

/** Measured tasks of a rank. Those of several queues overlap: each goes into the first track that is free. */
function measuredTracks(rank, found) {
  const tracks = [];
  for (const [, action, start, duration] of found) {
    let track = tracks.find((it) => it.end <= start + 1e-9);
    if (!track) { track = { spans: [], end: 0 }; tracks.push(track); }
    track.spans.push([start, duration, action]);
    track.end = start + duration;
  }
  return tracks.slice(0, MAX_QUEUES).map((track, index) =>
    ({ name: `rank ${rank}, ${index === 0 ? "measured" : "background"}`, spans: track.spans }));
}

/** Spans of the chosen step; those of a step do not change once they are known. */
async function fetchSpans(step) {
  const run = state.run;
  if (step === "" || (state.spans && state.spans.run === run && state.spans.step === step)) return;
  const ranks = await get(`/api/runs/${run}/spans?step=${step}`);
  state.spans = { run, step, ranks };
}

async function showStep() {
  const sampled = byId("sampled");
  const names = state.details.sampled_steps.map(String);
  if ([...sampled.options].map((it) => it.value).join() !== names.join()) {
    const chosen = sampled.value;
    sampled.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    sampled.value = names.includes(chosen) && chosen !== "" ? chosen : names[names.length - 1] || "";
  }
  const step = sampled.value;
  const run = state.run;
  await fetchSpans(step);
  if (run !== state.run || step !== sampled.value) return;
  // What has not changed is not drawn again: a run that trains would draw it twice a second.
  const drawn = [run, step, state.planned ? 1 : 0, state.plannedReason].join();
  if (drawn === state.drawnStep) return;
  state.drawnStep = drawn;
  // Queues that hardly take time, such as decisions that all ranks make together, would hide the rest.
  const least = state.planned ? state.planned.seconds / 500 : 0;
  const planned = (state.planned ? state.planned.tracks : [])
    .filter((track) => track.spans.reduce((sum, [, duration]) => sum + duration, 0) > least)
    .map((track) => ({ ...track, name: track.name + ", planned" }));
  // The measured tracks of a rank are below its own plan.
  const ranks = step !== "" && state.spans ? state.spans.ranks : [];
  const shown = [];
  for (const [rank, found] of [...ranks].sort(([one], [other]) => one - other)) {
    shown.push(...planned.filter((track) => track.name.startsWith(`rank ${rank} `)), ...measuredTracks(rank, found));
  }
  const used = new Set(shown);
  shown.push(...planned.filter((track) => !used.has(track)));
  const notes = [];
  if (ranks.length === 0) notes.push("No sampled step yet: steps 64, 128, 256 and so on have spans.");
  if (!state.planned) notes.push(state.plannedReason || "The planned program is being computed.");
  else if (state.planned.note) notes.push(state.planned.note);
  byId("step-note").textContent = notes.join(" ");
  await nextFrame();
  timeline.show(shown);
}

async function fetchPlanned() {
  if (state.planned || state.fetched.planned) return;
  state.fetched.planned = true;
  const run = state.run;
  try {
    const planned = await get(`/api/runs/${run}/planned`);
    if (run === state.run) state.planned = planned;
  } catch (error) {
    if (run === state.run) state.plannedReason = error.message;
  }
  if (run === state.run) refresh();
}

// ---- Explain -----------------------------------------------------------------------------------

async function showExplain() {
  if (state.fetched.explain) return;
  state.fetched.explain = true;
  byId("explain-state").textContent = "computing";
  const run = state.run;
  const area = byId("explain");
  try {
    const report = await get(`/api/runs/${run}/explain`);
    if (run !== state.run) return;
    area.replaceChildren(...renderExplain(report));
    byId("explain-state").textContent = `as of step ${digits(report.steps)}`;
  } catch (error) {
    if (run !== state.run) return;
    area.replaceChildren(make("p", {}, error.message));
    byId("explain-state").textContent = "";
  }
}

const PARTS = [["compute_seconds", "compute"], ["exposed_communication_seconds", "exposed communication"],
  ["waiting_for_rank_seconds", "waiting for a rank"], ["bubble_seconds", "pipeline bubble"], ["data_seconds", "data"],
  ["checkpoint_seconds", "checkpoints"], ["optimizer_seconds", "optimizer and other"]];

function renderExplain(report) {
  const children = [];
  for (const [index, cause] of report.causes.entries()) {
    const rank = cause.culprit_rank === null ? "" : `, rank ${cause.culprit_rank}`;
    children.push(make("p", { class: index === 0 ? "verdict" : null },
      `${index === 0 ? "Verdict: " : "Also: "}${cause.verdict}${rank}: ${percent(cause.share)} of the step`));
    children.push(make("ul", {}, ...cause.evidence.map((line) => make("li", {}, line))));
  }
  for (const warning of report.health.warnings || []) children.push(make("p", {}, "▲ " + warning));
  const next = report.next;
  const settings = next.settings.map((setting) => `--set ${setting}`).join(" ");
  const gain = next.gain === null ? "" : ` (saves ${percent(next.gain)})`;
  children.push(make("p", { class: "next" }, make("strong", {}, "Next: "), settings ? make("code", {}, settings) : null,
    settings ? ": " : "", next.reason + gain));
  children.push(make("h3", {}, `Parts of the median step (${seconds(report.step_seconds)})`));
  const parts = PARTS.map(([key, name]) => ({ name, parts: [[name, report.parts[key], 0]] }))
    .filter(({ parts: [[, value]] }) => value > report.step_seconds / 1000).sort((a, b) => b.parts[0][1] - a.parts[0][1]);
  children.push(bars(parts, seconds));
  if (report.ranks.length > 1) {
    const columns = [["compute", "compute_seconds"], ["optimizer", "optimizer_seconds"], ["data", "data_seconds"],
      ["communication", "exposed_communication_seconds"], ["waiting", "waiting_for_rank_seconds"]];
    const most = columns.map(([, key]) => Math.max(...report.ranks.map((rank) => rank[key])));
    children.push(make("h3", {}, "Time by rank"), make("div", { class: "scroll", tabindex: "0", role: "region",
      "aria-label": "Time by rank" }, make("table", {}, make("thead", {}, row(["rank", ...columns.map(([name]) => name)], "th")),
      make("tbody", {}, ...report.ranks.map((rank) => make("tr", {}, make("th", { scope: "row" }, String(rank.rank)),
        ...columns.map(([, key], index) => make("td", { class: heat(rank[key] / most[index]) || null }, seconds(rank[key])))))))));
  }
  if (report.what_if.length > 0) {
    children.push(make("h3", {}, "What if"), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What if" },
      make("table", {}, make("thead", {}, row([textHead("change"), "step", "saved"], "th")), make("tbody", {},
        ...report.what_if.map((it) => row([make("td", { class: "text" }, it.change), seconds(it.step_seconds), percent(it.gain)]))))));
  }
  return children;
}

// ---- Record ------------------------------------------------------------------------------------

function showRecord() {
  const { log, samples, info, started, folder } = state.details;
  const lines = [...log].reverse().map((line) => make("tr", { class: line.level === "warning" ? "warning" : null },
    make("td", {}, seconds(line.seconds)), make("td", {}, String(line.step)), make("td", { class: "text level" }, line.text)));
  byId("log").replaceChildren(make("thead", {}, row(["time", "step", textHead("event")], "th")),
    make("tbody", {}, ...lines));
  byId("samples").replaceChildren(...(samples.length === 0 ? [make("p", { class: "hint" }, "No text was generated yet.")]
    : [...samples].reverse().map((sample) => make("div", {}, make("p", { class: "hint" }, `after step ${sample.step}`),
      make("pre", {}, sample.text)))));
  const facts = started ? [["parameters", digits(started.num_params)], ["tokens per step", digits(started.tokens_per_step)],
    ["threads per worker", String(started.num_threads)], ["device", started.device || NONE], ["kernels", started.kernel_class],
    ["recipe hash", started.recipe_hash]] : [];
  byId("settings").replaceChildren(make("tbody", {}, ...[["folder", folder], ...(info.settings || []), ...facts].map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row", class: "text" }, name), make("td", { class: "text" }, value)))));
  if (byId("recipe").textContent !== (info.recipe || "")) byId("recipe").textContent = info.recipe || "";
}

// ---- Changes -----------------------------------------------------------------------------------

const SHOW = {
  training: async () => { await fetchCurves(); showRange(); await showCurves(); },
  workers: async () => {
    const run = state.run;
    const stragglers = await get(`/api/runs/${run}/stragglers`);
    if (run !== state.run) return;
    state.stragglers = stragglers;
    for (const show of [showRanks, showStragglers, showTraffic, showStaleness, showCompression, showMemory, showMatrix, fetchPlanned]) {
      await nextFrame();
      show();
    }
  },
  step: async () => { await showStep(); fetchPlanned(); },
  // Not awaited: a computation may take seconds.
  explain: async () => { showExplain(); },
  record: async () => showRecord(),
};

let isRefreshing = false;
let isStale = false;

/** Fetches and draws what is visible, one at a time; changes in between are joined. */
async function refresh() {
  if (state.run === null) return;
  if (isRefreshing) { isStale = true; return; }
  isRefreshing = true;
  try {
    do {
      isStale = false;
      const run = state.run;
      if (state.tab !== "training" && state.tab !== "explain") {
        const details = await get(`/api/runs/${run}/details`);
        if (run !== state.run) { isStale = true; continue; }
        state.details = details;
      }
      await SHOW[state.tab]();
      // A run of many steps a second is drawn twice a second.
      if (isStale) await new Promise((done) => setTimeout(done, 500));
    } while (isStale);
  } catch (error) {
    connection("lost", error.message);
  } finally {
    isRefreshing = false;
  }
}

function connection(kind, text) {
  const line = byId("connection");
  if (line.textContent === text) return;
  line.className = kind;
  line.textContent = text;
}

function take(runs) {
  const before = current();
  state.runs = runs;
  connection("live", "live");
  if (state.run === null && runs.length > 0) {
    // The newest run that is alive, or else the newest one.
    const alive = runs.findLastIndex((run) => run.state.name === "running");
    select(alive >= 0 ? alive : runs.length - 1);
    return;
  }
  showRuns();
  showOverview();
  const drawn = drawnRuns().map((number) => runs[number] && runs[number].version).join();
  if (before && state.drawn !== drawn) { state.drawn = drawn; refresh(); }
}

function choose(tab) {
  state.tab = tab.id.slice("tab-".length);
  for (const other of byId("tabs").children) {
    const isChosen = other === tab;
    other.setAttribute("aria-selected", String(isChosen));
    other.tabIndex = isChosen ? 0 : -1;
    byId(other.getAttribute("aria-controls")).hidden = !isChosen;
  }
  refresh();
}

function start() {
  // The token opened the page; from here on the cookie does, so it need not stay in the address.
  history.replaceState(null, "", "/");
  const tabs = [...byId("tabs").children];
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      next.focus();
      choose(next);
    });
  });
  byId("smoothing").addEventListener("input", showCurves);
  byId("log-scale").addEventListener("change", showCurves);
  byId("all-steps").addEventListener("click", () => setRange(null));
  byId("sampled").addEventListener("change", () => refresh());
  byId("straggler-figure").addEventListener("change", showStragglers);
  byId("step-in").addEventListener("click", () => timeline.zoom(0.6));
  byId("step-out").addEventListener("click", () => timeline.zoom(1.6));
  byId("step-all").addEventListener("click", () => timeline.reset());
  byId("explain-again").addEventListener("click", () => { state.fetched.explain = false; refresh(); });
  let resized = 0;
  let width = 0;
  new ResizeObserver(([entry]) => {
    // Its height changes with every table.
    if (entry.contentRect.width === width) return;
    width = entry.contentRect.width;
    state.width = width;
    cancelAnimationFrame(resized);
    resized = requestAnimationFrame(() => { timeline.redraw(); stragglerMap.redraw(); });
  }).observe(byId("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { timeline.redraw(); stragglerMap.redraw(); });
  const events = new EventSource("/api/live");
  events.addEventListener("runs", (event) => take(JSON.parse(event.data)));
  events.addEventListener("error", () => connection("lost", "no connection; trying again"));
}

start();
