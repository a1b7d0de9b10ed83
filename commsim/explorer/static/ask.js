// Questions to the server. Of each panel only the newest answer counts: an older one is aborted.

const tab = Math.random().toString(36).slice(2);
const running = new Map();

async function send(panel, path, options) {
  running.get(panel)?.abort();
  const stop = new AbortController();
  running.set(panel, stop);
  let response;
  try {
    response = await fetch(path, {...options, signal: stop.signal, cache: "no-store"});
    if (response.status === 204) return null;
    return await response.json();
  } catch (fault) {
    if (stop.signal.aborted) return null;
    if (response && !response.ok) return {error: `the server refused (${response.status})`};
    return {error: "the explorer does not answer: it was ended. Start commsim explore again and open this address " +
      `with what follows the #, or: commsim explore '${location.hash}'`};
  } finally {
    if (running.get(panel) === stop) running.delete(panel);
  }
}

function json(body) {
  return {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify(body)};
}

// The answer, null where a newer question took its place, {error} where there is none.
export function ask(panel, question, state) {
  return send(panel, "ask", json({key: `${tab}-${panel}`, question, state}));
}

// Ends what a panel waits for: the server ends its work as soon as the connection is gone.
export function cancel(panel) { running.get(panel)?.abort(); }

export function judge(file, state, against) {
  const query = new URLSearchParams({...state, name: file.name, key: `${tab}-log`, against});
  return send("log", `log?${query}`, {method: "POST", body: file});
}

// Long work: `say` is told each step; resolves to the answer, null where it was cancelled.
export async function follow(state, say, stop) {
  try {
    const response = await fetch("plan", {...json({key: `${tab}-plan`, state}), signal: stop.signal});
    const reader = response.body.getReader(), decoder = new TextDecoder();
    let rest = "", last = {error: "the explorer ended before the answer"};
    for (;;) {
      const {done, value} = await reader.read();
      rest += decoder.decode(value || new Uint8Array(), {stream: !done});
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        last = JSON.parse(line);
        if (last.what) say(last);
      }
      if (done) return last;
    }
  } catch (fault) {
    return stop.signal.aborted ? null : {error: "the explorer does not answer: it was ended"};
  }
}

export async function options() {
  return (await fetch("options")).json();
}
