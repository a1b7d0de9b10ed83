// The controls beside the panel: each stands for a key of the state.

import {make} from "./make.js";
import * as state from "./state.js";

const POWERS = [1, 2, 4, 8, 16, 32, 64];
const NODES = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
const RATES = ["", ...[25, 50, 100, 200, 400, 800, 1600].map((r) => `${r} Gb/s`)];
const shipped = (values) => ["", ...values.map(String)];
const COLLECTIVE = ["curve", "topology", "log"], TRAINING = ["step", "plan"];
const MACHINE = [...COLLECTIVE, ...TRAINING];  // the schedule knows no machine

function groups(o) {
  const of = (key, unit = "") => () => {
    const preset = o.presets.find((p) => p.name === state.get("on"));
    return preset && preset[key] ? `${preset[key]}${unit}, as shipped` : "";
  };
  return [
    {legend: "Machine", tabs: MACHINE, controls: [
      {key: "on", label: "Preset", options: o.presets.map((p) => [p.name, p.name, p.text])},
      {key: "nodes", label: "Nodes", steps: NODES.map(String), number: true},
      {key: "rate", label: "Rate of a NIC", steps: RATES, shipped: of("rate", " Gb/s")},
      {key: "nics", label: "NICs per node", steps: shipped([1, 2, 4, 8, 16]), shipped: of("nics")},
      {key: "gpus", label: "GPUs per node", steps: shipped([1, 2, 4, 8]), shipped: of("gpus")},
      {key: "over", label: "Oversubscription", steps: shipped([1, 1.5, 2, 3, 4, 8]), after: ":1"},
      {key: "leaf", label: "Nodes per leaf", steps: shipped([1, 2, 4, 8, 16, 32])},
      {key: "placement", label: "Order of the nodes", text: "in order; leaf, random, or 3, 0, 1", tabs: COLLECTIVE},
    ]},
    {legend: "Faults", id: "faults", tabs: MACHINE, controls: []},
    {legend: "Library", tabs: MACHINE, controls: [
      {key: "library", label: "Library", options: o.libraries.map((l) => [l, l === "none" ? "none: a raw schedule" : l])},
      {key: "version", label: "NCCL version", options: [["", `${o.version} (taken)`], ...o.versions.map((v) => [v, v])], when: nccl},
      {key: "ncclalgo", label: "Algorithm (NCCL_ALGO)", options: [["", "NCCL's choice"], ...o.ncclalgos.map((a) => [a, a])], tabs: COLLECTIVE, when: nccl},
      {key: "algorithm", label: "Algorithm", options: () => [["", "the first"], ["auto", "the quickest of all"], ...algorithms(o)], tabs: COLLECTIVE, when: () => state.get("library") === "none"},
      {key: "protocol", label: "Protocol", options: [["", "NCCL's choice"], ...o.protocols.map((p) => [p, p])], tabs: COLLECTIVE, when: nccl},
      {key: "channels", label: "Channels", taken: "chosen", steps: shipped([1, 2, 4, 8, 16, 24, 32]), tabs: COLLECTIVE},
      {key: "registered", label: "Registered buffers", options: [["", "none"], ["buffer", "buffer (-R 1)"], ["window", "window (-R 2)"]], when: nccl},
    ]},
    {legend: "Collective", tabs: [...COLLECTIVE, "schedule"], controls: [
      {key: "collective", label: "Collective", options: () => (state.get("tab") === "schedule" ? Object.keys(o.algorithms) : o.collectives).map((c) => [c, c]), also: {schedule: "", algorithm: ""}},
      {key: "sizes", label: "Sizes", text: "8 B .. 8 GiB x2", tabs: COLLECTIVE},
      {key: "dtype", label: "Type", options: ["", "float32", "bfloat16", "float16", "float8_e4m3", "int8", "float64"].map((t) => [t, t || "float32 (taken)"]), tabs: COLLECTIVE},
    ]},
    {legend: "Training step", tabs: TRAINING, controls: [
      {key: "model", label: "Model", options: o.models.map((m) => [m, m]), also: {seq: "", gb: ""}},
      {key: "tp", label: "Tensor parallel", steps: POWERS.map(String)},
      {key: "pp", label: "Pipeline stages", steps: [...POWERS, 128].map(String)},
      {key: "cp", label: "Context parallel", steps: shipped(POWERS.slice(1)), taken: "1"},
      {key: "ep", label: "Expert parallel", steps: shipped([...POWERS.slice(1), 128]), taken: "1"},
      {key: "mb", label: "Micro-batch", steps: shipped([2, 4, 8, 16]), taken: "1"},
      {key: "gb", label: "Sequences per step", taken: "4 per stage", steps: ["", ...POWERS, 128, 256, 512, 1024, 2048, 4096, 8192].map(String), number: true},
      {key: "seq", label: "Tokens of a sequence", shipped: () => o.lengths[state.get("model")] && `${o.lengths[state.get("model")]}, its own`, steps: ["", 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072].map(String)},
      {key: "vs", label: "Chunks per stage", taken: "as scheduled", steps: shipped([1, 2, 3, 4, 5, 8, 10])},
      {key: "pipeline", label: "Pipeline schedule", options: [["", "1f1b (taken)"], ...o.pipelines.map((p) => [p, p])]},
      {key: "zero", label: "ZeRO stage", options: [["0", "0"], ["1", "1: optimizer"], ["2", "2: and gradients"], ["3", "3: and parameters"]]},
      {key: "recompute", label: "Recompute", options: ["", "none", "selective", "layerwise", "full"].map((r) => [r, r || "none (taken)"])},
      {key: "sp", label: "Sequence parallel", check: "true"},
      {key: "precision", label: "Precision", options: ["", "bf16", "fp16", "fp8", "fp32"].map((p) => [p, p || "bf16 (taken)"])},
    ]},
  ];
}

function nccl() { return state.get("library") === "nccl"; }

function algorithms(o) { return (o.algorithms[state.get("collective")] || []).map(([name, text]) => [name, name, text]); }

function stepper(c, id) {
  const range = make("input", {type: "range", id, min: 0, max: c.steps.length - 1, step: 1});
  const words = () => {
    const value = state.get(c.key);
    return value === "" ? c.taken || (c.shipped && c.shipped()) || "as shipped" : value + (c.after || "");
  };
  const box = c.number && make("input", {type: "number", min: 1, max: 65536, "aria-label": `${c.label}, exactly`});
  const output = make("output", {for: id});
  const move = (moving) => state.set({[c.key]: c.steps[+range.value]}, moving);
  range.addEventListener("input", () => move(true));
  range.addEventListener("change", () => move(false));
  box?.addEventListener("change", () => {
    if (box.value || c.steps.includes("")) state.set({[c.key]: box.value});
    else box.value = state.get(c.key);  // emptied, or no number: nothing is asked
  });
  const show = () => {
    const value = state.get(c.key), at = c.steps.indexOf(value);
    const near = c.steps.findIndex((s) => parseFloat(s) >= parseFloat(value));
    range.value = at >= 0 ? at : near >= 0 ? near : c.steps.length - 1;
    output.textContent = words();
    range.setAttribute("aria-valuetext", words());
    if (box && document.activeElement !== box) box.value = value;
    if (box && document.activeElement === box && +box.value !== +value) box.value = value;
  };
  return {parts: [make("label", {for: id}, c.label, output), range, box], show, kind: box ? "beside" : ""};
}

function chooser(c, id) {
  const select = make("select", {id});
  select.addEventListener("change", () => state.set({[c.key]: select.value, ...c.also}));
  const show = () => {
    const options = typeof c.options === "function" ? c.options() : c.options;
    const value = state.get(c.key), known = options.some(([v]) => v === value);
    const listed = known ? options : [...options, [value, value]];
    const key = JSON.stringify(listed);
    if (select.dataset.listed !== key) {
      select.replaceChildren(...listed.map(([v, text, title]) => make("option", {value: v, title}, text || v)));
      select.dataset.listed = key;
    }
    select.value = value;
  };
  return {parts: [make("label", {for: id}, c.label), select], show, kind: ""};
}

function writer(c, id) {
  const input = make("input", {type: "text", id, placeholder: c.text, spellcheck: "false", autocomplete: "off"});
  input.addEventListener("change", () => state.set({[c.key]: input.value.trim()}));
  return {parts: [make("label", {for: id}, c.label), input], show: () => { input.value = state.get(c.key); }, kind: ""};
}

function checker(c, id) {
  const input = make("input", {type: "checkbox", id});
  input.addEventListener("change", () => state.set({[c.key]: input.checked ? c.check : ""}));
  return {parts: [make("label", {for: id}, input, c.label)], show: () => { input.checked = state.get(c.key) === c.check; }, kind: "check"};
}

export function controls(form, o) {
  form.addEventListener("submit", (event) => event.preventDefault());
  const shows = [];
  for (const group of groups(o)) {
    const field = make("fieldset", {id: group.id}, make("legend", {}, group.legend));
    for (const c of group.controls) {
      const id = `control-${c.key}`;
      const made = (c.steps ? stepper : c.options ? chooser : c.check ? checker : writer)(c, id);
      const row = make("div", {class: `control ${made.kind}`}, made.parts.filter(Boolean));
      field.append(row);
      shows.push(() => {
        const tab = state.get("tab") || "curve";
        row.hidden = Boolean((c.tabs && !c.tabs.includes(tab)) || (c.when && !c.when()));
        made.show();
      });
    }
    shows.push(() => { field.hidden = Boolean(group.tabs && !group.tabs.includes(state.get("tab") || "curve")); });
    form.append(field);
  }
  const show = () => shows.forEach((one) => one());
  state.onChange(show);
  show();
}
