// The page of the planner: settings of a run on a cluster, planned anew with each change.
"use strict";

let choices = null;
let controls = {};

const deviceOf = (name) => choices.devices.find((device) => device.name === name);

function address() {
  const query = new URLSearchParams();
  for (const name of ["model", "device", "devices"]) query.set(name, controls[name].get());
  if (!controls.batch.isFree) query.set("batch", controls.batch.get());
  const network = controls.network.get();
  if (network !== deviceOf(controls.device.get()).network_gbps) query.set("network", network);
  return "/api/plan?" + query;
}

/** Pause after the last change before the request for curves over devices, which take longest. */
const SCALING_PAUSE_MS = 600;
let scalingTimer = null;
const scaling = new Questions((answer) => byId("scaling").replaceChildren(...drawings(answer.pictures)), true);

const questions = new Questions((plan, path) => {
  clearTimeout(scalingTimer);
  scalingTimer = setTimeout(() => scaling.ask(path.replace("/api/plan?", "/api/plan/scaling?")), SCALING_PAUSE_MS);
  byId("layout").textContent = plan.layout;
  byId("note").textContent = plan.not_runnable.length > 0
    ? "Only planned, not trained here: " + plan.not_runnable.join("; ") : "";
  byId("figures").replaceChildren(...plan.figures.map(({ name, value, note }) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, note)))));
  byId("pictures").replaceChildren(...drawings(plan.pictures));
  fillTable(byId("layouts"), ["layout", "step", "memory", "MFU"], plan.layouts.map((it) =>
    [it.layout, seconds(it.step_seconds), memoryBytes(it.memory_bytes), percent(it.mfu)]), (at) => at === 0);
  const file = plan.cluster_file ? `# cluster.toml\n${plan.cluster_file}\n` : "";
  byId("command").textContent = file + plan.command;
  byId("text").textContent = plan.text;
  if (controls.batch.isFree) controls.batch.set(plan.batch);
});

const again = () => questions.ask(address());

/** Speeds of networks: those of the devices, and a tenth to four hundred GB/s. */
function networks() {
  const usual = choices.devices.map((device) => device.network_gbps);
  const all = [...usual, ...placesOf({ min: 0.1, max: 400, value: 1 })];
  return [...new Set(all)].sort((one, other) => one - other);
}

/** The network of a device type is as fast as usual until it is moved. */
function useDevice() {
  controls.network.set(deviceOf(controls.device.get()).network_gbps);
  again();
}

async function start() {
  choices = await get("/api/plan/choices");
  const { start: first } = choices;
  const models = [...choices.models].sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
  const all = [
    choice({ name: "model", title: "Model", value: first.model, onInput: again,
      values: models.map((model) => [model.name, `${model.name} (${rate(model.params)} parameters)`]) }),
    choice({ name: "device", title: "Device", value: first.device, onInput: useDevice,
      values: choices.devices.map((device) => [device.name, device.name]) }),
    slider({ name: "devices", title: "Devices", values: powersOfTwo(16384), value: first.devices, show: (value) => digits(value),
      onInput: again }),
    slider({ name: "batch", title: "Global batch", values: powersOfTwo(65536), value: 512,
      show: (value) => digits(value) + " sequences", onInput: () => { controls.batch.isFree = false; again(); } }),
    slider({ name: "network", title: "Network", values: networks(), value: deviceOf(first.device).network_gbps,
      show: (value) => digits(value) + " GB/s per device", onInput: again }),
  ];
  controls = Object.fromEntries(all.map((control) => [control.name, control]));
  // Until it is moved, the batch is about four million tokens.
  controls.batch.isFree = true;
  byId("settings").replaceChildren(...all.map((control) => control.element));
  again();
}

start().catch((error) => tell("lost", error.message));
