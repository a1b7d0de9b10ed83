// The state: words by key, in the address behind #, so that back, forward and a copied address work.

let defaults = {};
let values = {};
const listeners = [];

export function begin(given, start) {
  defaults = given;
  read(location.hash.length > 1 ? location.hash.slice(1) : start);
  addEventListener("popstate", () => { read(location.hash.slice(1)); tell(new Set(["*"])); });
}

function read(text) {
  values = Object.fromEntries(new URLSearchParams(text));
}

function hash() {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) if (value !== (defaults[key] || "")) query.set(key, value);
  return `#${query}`;
}

function tell(changed) { listeners.forEach((listener) => listener(changed)); }

export function onChange(listener) { listeners.push(listener); }

export function get(key) { return values[key] ?? defaults[key] ?? ""; }

// All that is said; what is not is left to the server, which has the same defaults.
export function all() { return {...values}; }

// Changes keys; a change is a step back, all of one move of a slider together.
export function set(changes, moving = false) {
  const changed = new Set(Object.entries(changes).filter(([k, v]) => get(k) !== v).map(([k]) => k));
  Object.assign(values, changes);
  const now = hash();
  if (now !== location.hash && !(now === "#" && location.hash === "")) {
    history[held ? "replaceState" : "pushState"](null, "", now);
  }
  held = moving;
  if (changed.size) tell(changed);
}

let held = false;  // whether a slider moves
