// The faults of the machine: made by a click on the drawing or by the form, listed with a button that mends each.

import {ask} from "./ask.js";
import {make} from "./make.js";
import * as state from "./state.js";

export function list() { return state.get("faults").split(";").filter(Boolean); }

// What is wrong with a place ("nic:0.3"): "" where nothing is.
export function at(place) {
  const fault = list().find((f) => f.startsWith(`${place}:`));
  return fault ? fault.slice(place.length + 1) : "";
}

export function put(place, what) {
  const others = list().filter((f) => !f.startsWith(`${place}:`));
  state.set({faults: [...others, ...(what ? [`${place}:${what}`] : [])].join(";")});
}

// A click goes on: healthy, at half its rate, failed, healthy.
export function turn(place) {
  const next = {"": "0.5", "0.5": "failed"};
  put(place, next[at(place)] ?? "");
}

function words(fault) {
  const [kind, place, what] = fault.split(":");
  const where = kind === "nic" ? `NIC ${place.split(".")[1]} of node ${place.split(".")[0]}` : kind === "link" ? place.replace("~", " - ") : `${kind} ${place}`;
  return `${where}: ${what === "failed" ? "failed" : what === "no_gdr" ? "no GPUDirect" : `at ${100 * what} %`}`;
}

export function faults(field) {
  const items = make("ul", {});
  const kind = make("select", {"aria-label": "Kind of the place"}, ["nic", "link", "switch", "node"].map((k) => make("option", {value: k}, k)));
  const place = make("input", {type: "text", "aria-label": "Place of the fault", placeholder: "0.3", spellcheck: "false"});
  const what = make("select", {"aria-label": "What is wrong"}, [["0.5", "half rate"], ["0.1", "a tenth"], ["failed", "failed"]].map(([v, t]) => make("option", {value: v}, t)));
  const hints = {nic: "node.NIC: 0.3", link: "leaf0.rail0~spine0", switch: "leaf0.rail0", node: "2"};
  kind.addEventListener("change", () => { place.placeholder = hints[kind.value]; });
  const wrong = make("p", {class: "wrong", role: "alert", hidden: true});
  const add = make("button", {type: "button", onclick: async () => {
    const at = `${kind.value}:${place.value.trim()}`;
    if (!place.value.trim()) return;
    const answer = await ask("faults", "faults", {...state.all(), faults: `${at}:${what.value}`});
    if (!answer) return;
    wrong.hidden = !answer.error;
    wrong.textContent = answer.error || "";
    if (!answer.error) put(at, what.value);
  }}, "Add");
  field.append(items, make("div", {class: "row"}, kind, place, what, add), wrong);
  const show = () => {
    items.replaceChildren(...list().map((fault) => make("li", {}, make("span", {}, words(fault)),
      make("button", {type: "button", "aria-label": `Mend ${words(fault)}`, onclick: () => put(fault.slice(0, fault.lastIndexOf(":")), "")}, "mend"))));
    if (!list().length) items.append(make("li", {class: "muted"}, "none; click a link in Topology"));
  };
  state.onChange(show);
  show();
}
