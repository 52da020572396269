// The page of the lab: an experiment with a slider for each parameter, or a schedule round by round.
"use strict";

let choices = null;
let subject = null;
let controls = [];
let shown = { name: "", svg: "", csv: "", notebook: "" };

// ---- Units -------------------------------------------------------------------------------------

const SHOW = {
  count: (value) => digits(value), number: (value) => digits(value), times: (value) => digits(value) + "×",
  seconds, bytes: sentBytes, bytes_per_second: (value) => sentBytes(value) + "/s", share: percent,
};

// ---- Experiments -------------------------------------------------------------------------------

function showPictures(svgs) {
  byId("pictures").replaceChildren(...drawings(svgs));
}

function showFacts(answer) {
  byId("findings").replaceChildren(...(answer.findings || []).map((finding) => make("li", {}, finding)));
  const { columns = [], rows = [] } = answer;
  const head = columns.map((column) => column.name);
  const isText = rows.length > 0 ? rows[0].map((cell) => !/^[\d.\-]/.test(cell) && !/^never/.test(cell)) : [];
  fillTable(byId("table"), head, rows, (at) => isText[at]);
  byId("table").parentElement.hidden = rows.length === 0;
  byId("command").textContent = answer.command;
}

const experiments = new Questions((answer) => {
  showPictures([answer.chart, answer.timeline]);
  showFacts(answer);
  shown = { name: subject.name, svg: answer.chart, csv: answer.csv, notebook: answer.notebook };
  showExports();
});

function experimentAddress() {
  const query = new URLSearchParams({ name: subject.name });
  for (const control of controls) {
    if (control.isSweep) query.append("sweep", `${control.key}=${control.get()}`);
    else if (control.name === "seeds") query.set("seeds", control.get());
    else if (!control.isDefault()) query.append("param", `${control.key}=${control.get()}`);
  }
  return "/api/lab/experiment?" + query;
}

/** The swept parameter is a list, each other one a slider or a choice. */
function controlOf(param, onInput) {
  const { key, meaning: hint, unit, range } = param;
  const title = key.replaceAll("_", " ");
  const name = "param-" + key;
  if (!range) {
    const control = choice({ name, title, hint, values: param.choices.map((it) => [it, it]), value: param.choices[0], onInput });
    return Object.assign(control, { key });
  }
  const { min, max, default: value } = range;
  const values = placesOf({ min, max, value, isWhole: unit === "count" });
  return Object.assign(slider({ name, title, hint, values, value, show: SHOW[unit], onInput }), { key });
}

function sweepOf(param, values, onInput) {
  const input = make("input", { type: "text", id: "set-sweep", value: values.join(","), spellcheck: "false" });
  input.addEventListener("change", onInput);
  const title = `${param.key.replaceAll("_", " ")}, one row for each`;
  const label = make("label", { class: "setting", title: param.meaning }, make("span", {}, title), input);
  return { element: label, name: "sweep", key: param.key, isSweep: true, get: () => input.value.replaceAll(" ", "") };
}

function chooseExperiment() {
  const again = () => experiments.ask(experimentAddress());
  const { params, sweep } = subject;
  controls = params.map((param) =>
    param.key === sweep.key ? sweepOf(param, sweep.values, again) : controlOf(param, again));
  const seeds = Array.from({ length: choices.max_seeds }, (_, at) => at + 1);
  controls.push(slider({ name: "seeds", title: "seeds", hint: "several give 95 % confidence intervals", values: seeds, value: 1,
    show: (value) => digits(value), onInput: again }));
  byId("settings").replaceChildren(...controls.map((control) => control.element));
  byId("title").textContent = subject.title;
  byId("question").textContent = subject.question;
  byId("real").replaceChildren();
  byId("measure").hidden = !subject.is_measured;
  byId("measure-text").textContent = "";
  const measured = subject.is_measured ? `lockstep lab ${subject.name} --real` : null;
  const texts = [["Formula", subject.formula], ["Look at", subject.look], ["Common surprises", subject.surprise],
    ["On this machine", measured && `${measured} measures it with the engine, beside the simulation`]];
  byId("explanation").replaceChildren(...texts.filter(([, text]) => text).flatMap(([name, text]) =>
    [make("dt", {}, name), make("dd", {}, text)]));
  again();
}

/** The engine on this machine, with parameters for one host; its chart stands beside the simulation's. */
const measurements = new Questions((answer, path) => {
  byId("measure").disabled = false;
  if (!subject || path !== measurementAddress()) return;
  byId("real").replaceChildren(...drawings([answer.chart]));
  byId("measure-text").textContent = `${answer.setting} ${answer.findings.join(" ")}`;
}, true);

const measurementAddress = () => "/api/lab/real?name=" + encodeURIComponent(subject.name);

function measure() {
  byId("measure").disabled = true;
  byId("measure-text").textContent = "measuring, which takes up to two minutes";
  const measured = measurements.run(measurementAddress());
  measured.finally(() => {
    byId("measure").disabled = false;
    if (byId("measure-text").textContent.startsWith("measuring")) byId("measure-text").textContent = "The measurement failed.";
  });
}

// ---- Walks -------------------------------------------------------------------------------------

/** Time of a round while a walk plays. */
const ROUND_MS = 900;

const player = {
  frames: [], at: 0, timer: null,

  show(frames) {
    this.frames = frames.map((frame) => ({ ...frame, element: make("figure", {}, drawing(frame.svg)) }));
    this.at = Math.min(this.at, frames.length - 1);
    byId("round").max = String(frames.length - 1);
    this.draw();
  },

  draw() {
    const frame = this.frames[this.at];
    if (!frame) return;
    byId("pictures").replaceChildren(frame.element);
    if (this.timer && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.send(frame);
    byId("round").value = String(this.at);
    const text = `${this.at + 1} of ${this.frames.length}: ${frame.title}`;
    byId("round-text").textContent = text;
    byId("round").setAttribute("aria-valuetext", text);
    byId("findings").replaceChildren(...frame.messages.map((message) => make("li", {}, message)));
  },

  /** Messages move along their arrows while a walk plays. */
  send(frame) {
    const svg = frame.element.querySelector("svg");
    for (const [x, from, to] of frame.arrows) {
      const dot = draw("circle", { class: "sent", cx: x, cy: from, r: 5 });
      svg.append(dot);
      const moved = dot.animate([{ transform: "translateY(0)" }, { transform: `translateY(${to - from}px)` }],
        { duration: ROUND_MS * 0.8, easing: "ease-in-out", fill: "forwards" });
      moved.finished.then(() => dot.remove(), () => dot.remove());
    }
  },

  go(to) {
    this.at = Math.max(0, Math.min(this.frames.length - 1, to));
    this.draw();
  },

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    byId("play").textContent = "Play";
    byId("play").setAttribute("aria-pressed", "false");
  },

  toggle() {
    if (this.timer) { this.stop(); return; }
    if (this.at === this.frames.length - 1) this.go(0);
    byId("play").textContent = "Pause";
    byId("play").setAttribute("aria-pressed", "true");
    this.timer = setInterval(() => {
      this.go(this.at + 1);
      if (this.at === this.frames.length - 1) this.stop();
    }, ROUND_MS);
  },
};

const walks = new Questions((answer) => {
  byId("title").textContent = answer.title;
  showFacts({ command: answer.command });
  player.show(answer.frames);
  shown = { name: subject.name, svg: answer.svg, csv: answer.csv, notebook: answer.notebook };
  showExports();
});

function chooseWalk() {
  const again = () => {
    player.stop();
    const query = new URLSearchParams(controls.map((control) => [control.name, control.get()]));
    query.set("name", subject.name);
    walks.ask("/api/lab/walk?" + query);
  };
  const ranks = Array.from({ length: 31 }, (_, at) => at + 2);
  const bytes = Array.from({ length: 31 }, (_, power) => 2 ** power).filter((it) => it >= 1024);
  controls = [
    slider({ name: "ranks", title: "ranks", values: ranks, value: 4, show: (value) => digits(value), onInput: again }),
    slider({ name: "bytes", title: "size of the vector", values: bytes, value: 2 ** 20, show: memoryBytes, onInput: again }),
  ];
  byId("settings").replaceChildren(...controls.map((control) => control.element));
  byId("question").textContent = "Each round delivers the messages that are sent and awaited at the same time.";
  byId("explanation").replaceChildren();
  byId("real").replaceChildren();
  byId("measure").hidden = true;
  byId("measure-text").textContent = "";
  player.at = 0;
  again();
}

// ---- Page --------------------------------------------------------------------------------------

function showExports() {
  byId("save-csv").hidden = !shown.csv;
  byId("save-notebook").hidden = !shown.notebook;
}

function choose() {
  player.stop();
  const [kind, name] = byId("subject").value.split(":");
  const isWalk = kind === "walk";
  subject = isWalk ? { name } : choices.experiments.find((experiment) => experiment.name === name);
  byId("player").hidden = !isWalk;
  document.title = `${name} · Lab · Lockstep`;
  if (isWalk) chooseWalk(); else chooseExperiment();
}

function press(event) {
  if (byId("player").hidden || event.ctrlKey || event.altKey || event.metaKey) return;
  // Sliders, lists and buttons have these keys themselves.
  if (["INPUT", "SELECT", "BUTTON", "TEXTAREA"].includes(event.target.tagName)) return;
  const actions = { ArrowRight: () => player.go(player.at + 1), ArrowLeft: () => player.go(player.at - 1),
    Home: () => player.go(0), End: () => player.go(player.frames.length - 1), " ": () => player.toggle() };
  if (actions[event.key]) { actions[event.key](); event.preventDefault(); }
}

async function start() {
  choices = await get("/api/lab/choices");
  const options = (kind, names) => names.map(([name, text]) => make("option", { value: `${kind}:${name}` }, text));
  byId("subject").append(
    make("optgroup", { label: "Schedules, round by round" }, ...options("walk", choices.walks.map((name) => [name, name]))),
    make("optgroup", { label: "Experiments" }, ...options("experiment", choices.experiments.map((it) => [it.name, it.title]))));
  byId("subject").value = "experiment:" + choices.experiments[0].name;
  byId("subject").addEventListener("change", choose);
  byId("measure").addEventListener("click", measure);
  byId("play").addEventListener("click", () => player.toggle());
  byId("back").addEventListener("click", () => player.go(player.at - 1));
  byId("step").addEventListener("click", () => player.go(player.at + 1));
  byId("round").addEventListener("input", () => player.go(Number(byId("round").value)));
  document.addEventListener("keydown", press);
  byId("save-svg").addEventListener("click", () => save(shown.name + ".svg", new Blob([shown.svg], { type: "image/svg+xml" })));
  byId("save-png").addEventListener("click", () => savePng(shown.name + ".png", shown.svg));
  byId("save-csv").addEventListener("click", () => save(shown.name + ".csv", new Blob([shown.csv], { type: "text/csv" })));
  byId("save-notebook").addEventListener("click", () =>
    save(shown.name + ".ipynb", new Blob([shown.notebook], { type: "application/x-ipynb+json" })));
  choose();
}

start().catch((error) => tell("lost", error.message));
