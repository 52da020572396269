// The dashboard in a real browser, against the real command: node dashboard.mjs --lockstep PROGRAM
// [--short] [--only tools|large|live|report|gallery] [--gallery FILE] [--images FOLDER] [--assets FOLDER]. The step `browser` of `cargo xtask ci` installs what it
// needs and runs it.
//
// With --short, no time is measured, and of the tools only the light form is looked at.
//
// With --assets, files of that folder stand in for those of the program, to try a change of the page
// without building it.
//
// 1. While a run trains, its page is loaded: curves move, the timeline zooms, keys work.
// 2. A run of 100,000 steps on 64 ranks is drawn quickly while it grows: from the navigation on, first
//    paint and first curve within a second, and no frame over 50 ms in the median of three visits.
// 3. On the pages of the planner and the lab, sliders plan and run anew, walks step and play, and
//    files are saved.
// 4. Everywhere: no message on the console, no request to elsewhere, no serious fault of
//    accessibility, light and dark, wide and narrow.

import { spawn } from "node:child_process";
import { appendFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { cpus, loadavg, tmpdir } from "node:os";
import { dirname, join, resolve as absolute } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const argument = (name) => {
  const at = process.argv.indexOf(name);
  return at < 0 ? null : process.argv[at + 1];
};
const lockstep = absolute(argument("--lockstep"));
const images = argument("--images");
const assets = argument("--assets");
const isShort = process.argv.includes("--short");
const CHROMIUM = argument("--chromium") || "/usr/bin/chromium";
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const NUM_STEPS = 100_000;
const NUM_RANKS = 64;
const FIRST_PAINT_MS = 1000;
const FRAME_MS = 50;
const VISITS = 3;
const FORMS = [
  ["light", {}],
  ["dark", { colorScheme: "dark" }],
  ["phone", { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true }],
];

const folder = mkdtempSync(join(tmpdir(), "lockstep-browser-"));
const children = [];

function check(condition, text) {
  if (!condition) throw new Error(text);
  console.log("ok   " + text);
}

/** Starts the program and waits for a line of its output. */
function start(args, isIt) {
  return new Promise((resolve, reject) => {
    const child = spawn(lockstep, args, { cwd: folder, stdio: ["ignore", "pipe", "pipe"] });
    children.push(child);
    let text = "";
    const read = (block) => {
      text += block;
      const line = text.split("\n").find(isIt);
      if (line) resolve({ child, line });
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    child.on("exit", (code) => reject(new Error(`lockstep ${args.join(" ")} ended with ${code}: ${text}`)));
  });
}

function output(args) {
  return new Promise((resolve, reject) => {
    const child = spawn(lockstep, args, { cwd: folder, stdio: ["ignore", "pipe", "inherit"] });
    let text = "";
    child.stdout.on("data", (block) => { text += block; });
    child.on("exit", (code) => (code === 0 ? resolve(text) : reject(new Error(`exit code ${code}`))));
  });
}

/** A run folder with the events of a long run on many ranks. */
async function writeLargeRun() {
  const run = join(folder, "large", "0001");
  mkdirSync(run, { recursive: true });
  const sets = ["--preset", "bible-small", "--set", `train.steps=${NUM_STEPS}`, "--set", `train.batch=${NUM_RANKS}`,
    "--set", "train.microbatch=1", "--set", `run.workers=${NUM_RANKS}`, "--set", "parallel.tensor=2",
    "--set", "parallel.pipeline=4"];
  writeFileSync(join(run, "recipe.toml"), await output(["config", "--toml", ...sets]));
  const file = join(run, "events.jsonl");
  const lines = [];
  const record = (event) => lines.push(JSON.stringify({ v: 2, seconds: lines.length / 10, rank: 0, ...event }));
  // A fixed generator: the picture is the same in every run.
  let seed = 1;
  const random = () => { seed = (seed * 48271) % 2147483647; return seed / 2147483647; };
  const held = { weights: 12e6, gradients: 11e6, optimizer: 22e6, activations: 31e6, buffers: 4e6 };
  /** Tasks of a step on a rank: eight micro-batches, and communication behind them. */
  const spansOf = (rank) => {
    const spans = [];
    let at = 0.001 * (rank % 4);
    for (const action of ["forward", "backward"]) {
      for (let microbatch = 0; microbatch < 16; microbatch += 1) {
        const duration = (action === "forward" ? 0.001 : 0.002) * (0.9 + 0.2 * random());
        spans.push([spans.length, `${action} of micro-batch ${microbatch}`, at, duration]);
        spans.push([spans.length, `send of micro-batch ${microbatch}`, at + duration, duration / 4]);
        at += duration + 0.0002;
      }
    }
    spans.push([spans.length, "reduce bucket 0", at, 0.02], [spans.length + 1, "update", at + 0.02, 0.01]);
    return spans;
  };
  record({ event: "run_started", recipe_hash: "0".repeat(64), kernel_class: "synthetic", num_params: 2700000,
    tokens_per_step: 16384, num_steps: NUM_STEPS, num_threads: 1, workers: NUM_RANKS, device: "cpu" });
  for (let step = 1; step <= NUM_STEPS; step += 1) {
    const loss = 1.3 + 4 * Math.exp(-step / 9000) + 0.12 * random();
    const spike = step % 20011 === 0 ? 3 : 0;
    const duration = 0.11 + 0.02 * random() + (step % 5000 === 0 ? 0.3 : 0);
    record({ event: "step", step, loss: loss + spike, lr: 1e-3 * Math.min(1, step / 2000) * (1 - 0.9 * step / NUM_STEPS),
      grad_norm: 0.6 + 0.3 * random() + spike, tokens_per_second: 16384 / duration, step_seconds: duration,
      data_wait_seconds: 0.0005 * random(), exposed_communication_seconds: 0.02 + 0.01 * random(),
      straggler_wait_seconds: 0.004 * random(), is_skipped: false });
    // Steps 64, 128, 256 and so on are sampled.
    if (step >= 64 && (step & (step - 1)) === 0) {
      record({ event: "task_spans", step, spans: spansOf(0) });
      for (let worker = 1; worker < NUM_RANKS; worker += 1) record({ event: "rank_spans", step, worker, spans: spansOf(worker) });
    }
    if (step % 1000 === 0) {
      record({ event: "evaluated", step, validation_loss: loss + 0.05, perplexity: Math.exp(loss), train_seconds: step / 8,
        wire_bytes: step * 1000 });
      for (let worker = 0; worker < NUM_RANKS; worker += 1) {
        const slow = worker === 37 ? 3 : 1;
        record({ event: "rank_counters", step, worker, restarts: 0, missed_steps: 0, data_bytes: step * 900000,
          pipeline_bytes: step * 120000, tensor_bytes: step * 340000, strategy_bytes: 0,
          exposed_communication_seconds: step * 0.02 * (2 - slow / 3), straggler_wait_seconds: step * 0.004 / slow,
          resident_bytes: 410e6 + 9e6 * (worker % 4), busy_share: 0.8 + 0.002 * (worker % 7),
          memory: held });
      }
    }
    if (lines.length > 5000) { appendFileSync(file, lines.join("\n") + "\n"); lines.length = 0; }
  }
  record({ event: "sample", text: "In the beginning God created the heaven and the earth." });
  appendFileSync(file, lines.join("\n") + "\n");
  return run;
}

/** Opens a page that notes every message and every request. */
async function open(browser, url, options = {}, ready = "#run-name .state") {
  const context = await browser.newContext({ viewport: { width: 1440, height: 1000 }, ...options });
  const page = await context.newPage();
  const notes = [];
  // Where a run has no plan or no diagnosis, the answer is 409 with the reason, which the page shows.
  // Chromium notes it as well.
  const isAnswer = (text) => text.includes("status of 409");
  page.on("console", (message) => isAnswer(message.text()) || notes.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => notes.push(`error: ${error.message}`));
  const origin = new URL(url).origin;
  page.on("request", (request) => {
    if (!request.url().startsWith(origin) && !request.url().startsWith("data:")) notes.push("request to " + request.url());
  });
  for (const name of assets ? ["elements.js", "app.js", "workers.js", "tools.js", "plan.js", "lab.js", "style.css"] : []) {
    await page.route("**/" + name, async (route) => {
      const file = readFileSync(join(assets, name), "utf8");
      if (name !== "style.css") { await route.fulfill({ contentType: "text/javascript", body: file }); return; }
      // The program puts its palette in front.
      const served = await (await route.fetch()).text();
      await route.fulfill({ contentType: "text/css", body: served.slice(0, served.indexOf("/*")) + file });
    });
  }
  if (options.script) await page.addInitScript(options.script);
  await page.goto(url);
  await page.waitForSelector(ready);
  return { page, notes, context };
}

/** Runs in the page from the navigation on: notes long frames with their scripts, and the first curve. */
function observe() {
  globalThis.frames = [];
  globalThis.firstCurve = null;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      const scripts = entry.scripts.map((it) => `${it.sourceFunctionName || it.invoker} ${it.duration.toFixed(0)} ms`);
      const own = entry.renderStart ? entry.startTime + entry.duration - entry.renderStart : 0;
      const before = entry.scripts.filter((it) => !entry.renderStart || it.startTime < entry.renderStart);
      const work = own + before.reduce((sum, it) => sum + it.duration, 0);
      globalThis.frames.push({ at: entry.startTime, duration: entry.duration, work,
        text: `${entry.duration.toFixed(0)} ms at ${entry.startTime.toFixed(0)} ms: ${scripts.join(", ")}; rendering ${own.toFixed(0)} ms` });
    }
  }).observe({ type: "long-animation-frame", buffered: true });
  const look = () => {
    if (document.querySelector("#curves path.curve")) globalThis.firstCurve = performance.now();
    else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}

async function checkAccessibility(page, name) {
  // The policy of the page forbids scripts from elsewhere, so axe comes through the debugger.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((it) => ["serious", "critical"].includes(it.impact));
  const text = serious.map((it) => `${it.id}: ${it.help}: ${it.nodes.map((node) => node.html).slice(0, 3).join(" | ")}`);
  check(serious.length === 0, `${name}: no serious fault of accessibility ${text.join("\n")}`);
}

async function picture(page, name, fullPage = false) {
  if (images) await page.screenshot({ path: join(images, name + ".png"), fullPage });
}

const tabs = ["training", "workers", "step", "explain", "record"];
const tab = (page, name) => page.click("#tab-" + name);

async function whileItTrains(browser) {
  await start(["train", "--preset", "bible-quick", "--set", "train.steps=100000", "--set", "run.dir=live/0001",
    "--set", "run.workers=2", "--set", "eval.every=20"], (line) => line.includes("loss"));
  await output(["train", "--preset", "tiny", "--steps", "30", "--quiet", "--set", "run.dir=live/0000", "--set", "run.workers=2",
    "--set", "compress.method=top-k", "--set", "eval.every=10"]);
  await output(["train", "--preset", "tiny", "--steps", "30", "--quiet", "--set", "run.dir=live/servers", "--set", "run.workers=2",
    "--set", "sync.mode=parameter-server", "--set", "eval.every=10"]);
  const { line: url } = await start(["serve", "live"], (line) => line.startsWith("http"));
  const { page, notes, context } = await open(browser, url);
  check(new URL(page.url()).search === "", "the token does not stay in the address");
  const curve = () => page.getAttribute("#curves figure:first-child path.curve:not(.raw)", "d");
  await page.waitForFunction(() => document.querySelectorAll("#curves figure:first-child path").length > 0);
  const before = await curve();
  await page.waitForFunction((old) =>
    document.querySelector("#curves figure:first-child path.curve:not(.raw)").getAttribute("d") !== old, before, { timeout: 20000 });
  check(true, "curves move while the run trains");
  await page.waitForFunction(() => Number(document.getElementById("run-progress").value) > 10, null, { timeout: 60000 });
  // Keys: a cursor with a text, a range, and back.
  const slider = page.locator("#curves [role=slider]").first();
  await slider.focus();
  await page.keyboard.press("ArrowLeft");
  check(/step [\d\u202f]+: /.test(await slider.getAttribute("aria-valuetext")), "a cursor says its values");
  await page.keyboard.press("+");
  await page.waitForFunction(() => /steps .* to /.test(document.getElementById("range-text").textContent));
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.getElementById("range-text").textContent === "");
  check(true, "keys enlarge a range of steps and show all again");
  await page.waitForFunction(() => Number(document.getElementById("run-progress").value) > 70, null, { timeout: 60000 });
  await tab(page, "step");
  await page.waitForFunction(() => document.getElementById("step-range").textContent.includes(" of "), null, { timeout: 60000 });
  const whole = await page.textContent("#step-range");
  await page.click("#step-in");
  check((await page.textContent("#step-range")) !== whole, "the timeline zooms");
  await page.waitForFunction(() => {
    document.querySelector("#timeline details").open = true;
    return /planned/.test(document.querySelector("#timeline table").textContent);
  }, null, { timeout: 60000 });
  const tracks = await page.evaluate(() => [...new Set([...document.querySelectorAll("#timeline tbody td:first-child")]
    .map((cell) => cell.textContent))].filter((name) => name.startsWith("rank 0")));
  const measured = tracks.findIndex((name) => name.endsWith("measured"));
  check(measured > 0 && tracks.slice(0, measured).every((name) => name.endsWith("planned")), "the plan of a rank is above what was measured");
  await picture(page, "dashboard-live-step");
  for (const name of tabs) {
    await tab(page, name);
    await page.waitForTimeout(400);
    await checkAccessibility(page, `${name} of a run that trains`);
  }
  await page.waitForSelector("#explain .verdict", { state: "attached" });
  await compareRuns(page);
  check(notes.length === 0, `nothing on the console, no request to elsewhere ${notes.join("; ")}`);
  await context.close();
  for (const [name, options] of FORMS.slice(1)) {
    const opened = await open(browser, url, options);
    await opened.page.waitForSelector("#curves path.curve");
    const width = await opened.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    check(width <= 0, `${name}: nothing is wider than the window`);
    await picture(opened.page, "dashboard-live-" + name);
    await checkAccessibility(opened.page, name);
    check(opened.notes.length === 0, `${name}: nothing on the console ${opened.notes.join("; ")}`);
    await opened.context.close();
  }
}

/** Charts of every run, by their titles. */
const TITLES = ["Loss", "Throughput in tokens per second", "Learning rate", "Gradient norm", "Step time"];

/** Ticks the other run, and looks at its compression. */
async function compareRuns(page) {
  await tab(page, "training");
  const titles = await page.evaluate(() => [...document.querySelectorAll("#curves figure:not([hidden]) figcaption span")].map((it) => it.textContent));
  check(TITLES.every((title) => titles.includes(title)), `each curve has its chart: ${titles.join(", ")}`);
  await page.click("#runs input:not(:disabled)");
  await page.waitForFunction(() => document.querySelectorAll("#curves figure:first-child .legend li").length >= 2);
  const names = await page.textContent("#curves figure:first-child .legend");
  check(names.includes("0000 training") && names.includes("0001 training"), "two runs are compared in one chart");
  const lines = await page.locator("#curves figure:first-child path.curve:not(.raw)").count();
  check(lines >= 2, `${lines} lines in it`);
  await tab(page, "workers");
  await page.click("#runs button:has-text('0000')");
  await page.waitForSelector("#compression .bars");
  check(/times smaller/.test(await page.textContent("#compression")), "compressed bytes are beside those without compression");
  await picture(page, "dashboard-compression");
  await page.click("#runs button:has-text('servers')");
  await page.waitForSelector("#staleness .bars");
  check(/updates? old/.test(await page.textContent("#staleness")), "gradients of an asynchronous run are counted by their staleness");
}

/** The report of a run as a file that others can open. */
async function ofTheReport() {
  await output(["report", "live/0000", "--html", "report.html", "--pdf", "report.pdf"]);
  const pdf = readFileSync(join(folder, "report.pdf"));
  check(pdf.subarray(0, 5).toString() === "%PDF-" && pdf.length > 20000, `the report is a PDF of ${pdf.length} bytes`);
}

/** Moves the pointer over curves, enlarges a range, smooths, and looks at every tab. */
async function usePage(page, takesPictures) {
  await tab(page, "training");
  await page.waitForTimeout(300);
  const box = await page.locator("#curves figure").first().boundingBox();
  for (let at = 0; at < 40; at += 1) await page.mouse.move(box.x + 70 + at * 8, box.y + 120);
  await page.mouse.down();
  await page.mouse.move(box.x + 200, box.y + 120, { steps: 10 });
  await page.mouse.up();
  await page.waitForFunction(() => document.getElementById("range-text").textContent !== "");
  await page.fill("#smoothing", "0.9");
  await page.click("#all-steps");
  await page.waitForTimeout(500);
  if (takesPictures) await picture(page, "dashboard-light");
  for (const name of tabs) {
    await tab(page, name);
    // The plan and the diagnosis of a run are computed when they are first looked at.
    if (name === "step") await page.waitForSelector("#timeline figure:not([hidden])", { timeout: 60000 });
    if (name === "explain") await page.waitForSelector("#explain .verdict", { timeout: 60000 });
    await page.waitForTimeout(500);
    if (takesPictures) await picture(page, "dashboard-light-" + name, name !== "record");
  }
  await tab(page, "workers");
  await page.waitForFunction((ranks) => document.querySelectorAll("#ranks tbody tr").length === ranks, NUM_RANKS);
  await page.waitForFunction(() => /least: rank 37/.test(document.querySelector("#stragglers canvas").getAttribute("aria-label")));
  await page.waitForFunction(() => /rank 0 planned.*rank 0 measured/.test(document.getElementById("memory").textContent));
}

const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];

/** Appends a step now and then, as a run that trains does; returns a function that ends it. */
function grow(run) {
  let step = NUM_STEPS;
  const timer = setInterval(() => {
    step += 1;
    appendFileSync(join(run, "events.jsonl"), JSON.stringify({ v: 2, seconds: 1e4, rank: 0, event: "step", step, loss: 1.4, lr: 1e-4,
      grad_norm: 0.7, tokens_per_second: 1.5e5, step_seconds: 0.11, data_wait_seconds: 0, exposed_communication_seconds: 0.02,
      straggler_wait_seconds: 0.001, is_skipped: false }) + "\n");
  }, 250);
  return () => clearInterval(timer);
}

/** Visits a run that the server knows, again and again, and measures each visit from the navigation on. */
async function measure(browser, url, run) {
  const end = grow(run);
  const [paints, curves, longest] = [[], [], []];
  for (let visit = 0; visit < VISITS; visit += 1) {
    const { page, notes, context } = await open(browser, url, { script: observe });
    await page.waitForFunction(() => globalThis.firstCurve !== null);
    paints.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
    curves.push(await page.evaluate(() => globalThis.firstCurve));
    await usePage(page, visit === 0);
    const frames = (await page.evaluate(() => globalThis.frames)).filter((frame) => frame.at > paints[visit]);
    // Where scripts and rendering are the smaller part of a frame, it waited for a processor.
    const ours = frames.filter((frame) => frame.work > frame.duration / 2);
    longest.push(Math.max(0, ...ours.map((frame) => frame.duration)));
    for (const frame of frames) console.log(`     visit ${visit + 1}: ${ours.includes(frame) ? "frame" : "frame that waited"} of ${frame.text}`);
    check(notes.length === 0, `visit ${visit + 1}: nothing on the console ${notes.join("; ")}`);
    await context.close();
  }
  end();
  const list = (values) => values.map((value) => value.toFixed(0)).join(", ");
  console.log(`     first paint ${list(paints)} ms; first curve ${list(curves)} ms; longest frame ${list(longest)} ms (0: under ${FRAME_MS})`);
  check(paints.length === VISITS, `the run was looked at ${VISITS} times while it grew: its stragglers and its memory by part`);
  const load = `with a load of ${loadavg()[0].toFixed(1)} on ${cpus().length} processors`;
  console.log("     measured " + load);
  check(median(paints) < FIRST_PAINT_MS, `first paint after ${median(paints).toFixed(0)} ms, the median of ${VISITS} visits`);
  check(median(curves) < FIRST_PAINT_MS, `first curve after ${median(curves).toFixed(0)} ms`);
  check(median(longest) < FRAME_MS, `the longest frame took ${median(longest).toFixed(0)} ms`);
}

async function ofALargeRun(browser) {
  const run = await writeLargeRun();
  const { line: url } = await start(["serve", "large"], (line) => line.startsWith("http"));
  const began = Date.now();
  const { page, notes, context } = await open(browser, url);
  await page.waitForFunction((steps) => Number(document.getElementById("run-progress").value) === steps, NUM_STEPS, { timeout: 60000 });
  console.log(`     all ${NUM_STEPS} steps are read after ${Date.now() - began} ms`);
  await measure(browser, url, run);
  await tab(page, "step");
  await page.waitForFunction(() => document.getElementById("step-range").textContent.includes(" of "));
  await page.evaluate(() => { document.querySelector("#timeline details").open = true; });
  await page.waitForFunction(() => document.querySelectorAll("#timeline tbody tr").length > 0);
  const measured = await page.evaluate(() => new Set([...document.querySelectorAll("#timeline tbody td:first-child")]
    .map((cell) => cell.textContent).filter((text) => text.endsWith("measured"))).size);
  check(measured === NUM_RANKS, `measured tracks of ${measured} ranks`);
  for (const name of tabs) {
    await tab(page, name);
    await page.waitForTimeout(300);
    await checkAccessibility(page, `${name} of a large run`);
  }
  check(notes.length === 0, `nothing on the console, no request to elsewhere ${notes.join("; ")}`);
  await context.close();
  for (const [form, options] of FORMS.slice(1)) {
    const name = "dashboard-" + form;
    const opened = await open(browser, url, options);
    await opened.page.waitForTimeout(1500);
    await picture(opened.page, name);
    const width = await opened.page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    check(width <= 0, `${name}: nothing is wider than the window`);
    for (const of of tabs) {
      await tab(opened.page, of);
      await opened.page.waitForTimeout(500);
      await picture(opened.page, `${name}-${of}`, of !== "record");
      await checkAccessibility(opened.page, `${name}, ${of}`);
    }
    check(opened.notes.length === 0, `${name}: nothing on the console ${opened.notes.join("; ")}`);
    await opened.context.close();
  }
}

/** Waits until the page has its answer and asks nothing more. */
const isAnswered = (page) => page.waitForFunction(() => document.getElementById("state").className === "live", null, { timeout: 60000 });

/** Moves a slider by keys and waits for the answer. */
async function moveSlider(page, id, key, times) {
  await page.focus("#" + id);
  for (let at = 0; at < times; at += 1) await page.keyboard.press(key);
  await isAnswered(page);
}

async function ofThePlanner(page) {
  await page.click("nav.pages a[href='/plan']");
  await isAnswered(page);
  const figure = (name) => page.evaluate((of) => [...document.querySelectorAll("#figures dt")]
    .find((it) => it.textContent === of).nextElementSibling.firstChild.textContent, name);
  const before = await figure("step time");
  check((await page.locator("#pictures svg").count()) >= 4, "the planner draws its plan");
  const dots = await page.evaluate(() => [...document.querySelectorAll("#pictures svg .dot title")].map((it) => it.textContent));
  check(dots.length > 100 && dots.length <= 2000 && dots.every((it) => /TP|PP|DP|1 device/.test(it)),
    `${dots.length} candidates of the planner name themselves, such as ${dots[0]}`);
  await moveSlider(page, "set-network", "ArrowLeft", 100);
  check((await figure("step time")) !== before, `a slower network is planned anew: ${before}, then ${await figure("step time")}`);
  check((await page.textContent("#command")).includes("network_gbps"), "the command comes with its cluster file");
  await moveSlider(page, "set-devices", "ArrowRight", 1);
  check((await figure("devices")).replace(/\D/g, "") === "1024", "twice the devices are planned anew");
  const command = await page.textContent("#command");
  await moveSlider(page, "set-batch", "ArrowRight", 1);
  await page.waitForFunction((old) => document.getElementById("command").textContent !== old, command, { timeout: 60000 });
  const batch = async () => /--batch (\d+)/.exec(await page.textContent("#command"))[1];
  check((await page.textContent("#set-batch ~ output, label:has(#set-batch) output")).replace(/\D/g, "") === await batch(),
    `a batch of ${await batch()} is planned anew`);
  await page.waitForFunction(() => document.querySelectorAll("#scaling svg").length === 2, null, { timeout: 60000 });
  check(true, "curves over numbers of devices follow");
}

/** Files that the page saves, by their endings. */
async function saved(page, name, kinds) {
  const files = {};
  for (const [button, ending] of kinds) {
    const [download] = await Promise.all([page.waitForEvent("download"), page.click("#save-" + button)]);
    check(download.suggestedFilename() === `${name}.${ending}`, `${name}.${ending} is saved`);
    files[ending] = readFileSync(await download.path());
  }
  return files;
}

/** Runs the first cell of a notebook, which calls the program, with python3 where there is one. */
async function runNotebook(text) {
  const cell = JSON.parse(text).cells.find((it) => it.cell_type === "code").source;
  const code = await new Promise((resolve) => {
    const child = spawn("python3", ["-c", Array.isArray(cell) ? cell.join("") : cell],
      { cwd: folder, stdio: ["ignore", "ignore", "inherit"], env: { ...process.env, PATH: `${dirname(lockstep)}:${process.env.PATH}` } });
    child.on("error", () => resolve(null));
    child.on("exit", resolve);
  });
  if (code === null) console.log("     left out: no python3 for the notebook");
  else check(code === 0, "a cell of the notebook runs");
}

/** Measures an experiment on this machine, beside its simulation. */
async function ofAMeasurement(page) {
  await page.selectOption("#subject", "experiment:stragglers");
  await isAnswered(page);
  await page.click("#measure");
  await page.waitForSelector("#real svg", { timeout: 120000 });
  check((await page.textContent("#real svg")).includes("measured"), "a measurement on this machine stands beside its simulation");
}

async function ofTheLab(page, isFirst) {
  await page.click("nav.pages a[href='/lab']");
  await isAnswered(page);
  await page.selectOption("#subject", "experiment:stragglers");
  await isAnswered(page);
  const drawn = () => page.evaluate(() => document.querySelector("#pictures svg").outerHTML);
  const before = await drawn();
  await page.locator("#settings input[type=range]").first().focus();
  for (let at = 0; at < 20; at += 1) await page.keyboard.press("ArrowRight");
  await page.waitForFunction((old) => document.querySelector("#pictures svg").outerHTML !== old, before, { timeout: 20000 });
  await isAnswered(page);
  check((await page.textContent("#command")).includes("--param"), "a slider runs the experiment anew");
  const files = await saved(page, "stragglers", [["svg", "svg"], ["png", "png"], ["csv", "csv"], ["notebook", "ipynb"]]);
  check(files.png.subarray(1, 4).toString() === "PNG" && files.png.length > 10000, "the PNG has a picture");
  check(JSON.parse(files.ipynb).nbformat === 4 && files.csv.toString().includes(","), "the notebook and the CSV can be read");
  await page.selectOption("#subject", "walk:ring");
  await page.waitForFunction(() => document.getElementById("round-text").textContent.startsWith("1 of"));
  await page.focus("#main");
  await page.keyboard.press("ArrowRight");
  check((await page.textContent("#round-text")).startsWith("2 of"), "a walk steps by keys");
  await page.click("#play");
  await page.waitForFunction(() => document.getElementById("round-text").textContent.startsWith("4 of"), null, { timeout: 5000 });
  await page.click("#play");
  check((await page.locator("#findings li").count()) > 0, "a walk plays and lists its messages");
  await page.click("#step");
  await page.click("#play");
  await page.waitForFunction(() => document.querySelectorAll("#pictures .sent").length > 0);
  await page.click("#play");
  check(true, "messages move between the ranks");
  const ofWalk = await saved(page, "ring", [["csv", "csv"], ["notebook", "ipynb"]]);
  check(ofWalk.csv.toString().split("\n").length > 10, "the messages of a walk are saved");
  if (isFirst) await runNotebook(ofWalk.ipynb);
}

async function ofTheTools(browser) {
  const { line: url } = await start(["serve"], (line) => line.startsWith("http"));
  for (const [name, options] of isShort ? FORMS.slice(0, 1) : FORMS) {
    const { page, notes, context } = await open(browser, url, options, "#connection.live");
    await ofThePlanner(page);
    await picture(page, "planner-" + name);
    if (images) await page.screenshot({ path: join(images, `planner-${name}-whole.png`), fullPage: true });
    await checkAccessibility(page, "planner, " + name);
    await ofTheLab(page, name === "light");
    await picture(page, "lab-walk-" + name);
    await checkAccessibility(page, "walk, " + name);
    await page.selectOption("#subject", "experiment:stragglers");
    await page.waitForFunction(() => document.querySelectorAll("#table tbody tr").length > 0);
    await isAnswered(page);
    await picture(page, "lab-" + name);
    await checkAccessibility(page, "lab, " + name);
    const width = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    check(width <= 0, `lab, ${name}: nothing is wider than the window`);
    // Every experiment and every walk once, where it is quick to look at.
    if (name === "light" && !isShort) {
      await everySubject(page);
      await ofAMeasurement(page);
      await picture(page, "lab-measured");
    }
    check(notes.length === 0, `${name}: nothing on the console, no request to elsewhere ${notes.join("; ")}`);
    await context.close();
  }
}

async function everySubject(page) {
  const subjects = await page.evaluate(() => [...document.getElementById("subject").options].map((it) => it.value));
  for (const subject of subjects) {
    await page.selectOption("#subject", subject);
    await page.waitForFunction((name) => document.getElementById("command").textContent.includes(name), subject.split(":")[1], { timeout: 60000 });
    await isAnswered(page);
  }
  check(subjects.length > 40, `all ${subjects.length} experiments and walks are drawn`);
}

/** Charts of every kind on one page, which a person looks at before a release. */
async function ofTheGallery(browser) {
  const file = argument("--gallery");
  if (!file) { console.log("     left out: the gallery, without --gallery FILE"); return; }
  const page = await browser.newPage({ viewport: { width: 1240, height: 1000 } });
  const notes = [];
  page.on("console", (message) => notes.push(message.text()));
  page.on("request", (request) => { if (!request.url().startsWith("file:")) notes.push("request to " + request.url()); });
  await page.goto(pathToFileURL(absolute(file)).href);
  const charts = await page.evaluate(() => [...document.querySelectorAll("svg")].map((svg) => {
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const scale = svg.getBoundingClientRect().width / width;
    const frame = svg.getBoundingClientRect();
    const outside = [...svg.querySelectorAll("text")].filter((text) => {
      const box = text.getBoundingClientRect();
      return box.width > 0 && (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1);
    });
    return { title: svg.querySelector("text").textContent, height: height * scale, outside: outside.map((it) => it.textContent) };
  }));
  const faults = charts.filter((chart) => chart.outside.length > 0).map((chart) => `${chart.title}: ${chart.outside.slice(0, 3).join(" | ")}`);
  check(charts.length >= 8 && faults.length === 0, `${charts.length} charts of the gallery keep their texts inside ${faults.join("; ")}`);
  check(notes.length === 0, `the gallery asks for nothing ${notes.join("; ")}`);
  if (images) await page.screenshot({ path: join(images, "gallery.png"), fullPage: true });
  await page.close();
}

let isFailed = false;
const launch = { executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] };
const browser = await chromium.launch(launch).catch((error) => {
  console.log("left out: Chromium does not start: " + error.message.split("\n")[0]);
  process.exit(isShort ? 0 : 1);
});
try {
  const only = argument("--only");
  for (const [name, part] of [["tools", ofTheTools], ["large", ofALargeRun], ["live", whileItTrains], ["report", ofTheReport], ["gallery", ofTheGallery]]) {
    if (only ? only === name : !isShort || !["large", "gallery"].includes(name)) await part(browser);
  }
} catch (error) {
  isFailed = true;
  console.error(error);
} finally {
  await browser.close();
  for (const child of children) { child.removeAllListeners("exit"); child.kill("SIGKILL"); }
  rmSync(folder, { recursive: true, force: true });
}
process.exit(isFailed ? 1 : 0);
