// Asks /status.json each second and draws it. Whatever stands in it is set as text, never as markup.
"use strict";

const SECOND = 1000;
const PATIENCE = 5 * SECOND;
const BOX = { width: 180, height: 58, across: 70, down: 18 };
const SVG = "http://www.w3.org/2000/svg";
const numbers = new Intl.NumberFormat("en");
const CHARTS_EVERY = 5 * SECOND;
const STALE = 5; // seconds without a newer snapshot: what rates there were are over
let newest = null;
let before = null; // the snapshot before the newest
let charted = Date.now(); // when the charts came, at first with the page

const at = (id) => document.getElementById(id);
const count = (value) => (value === null || value === undefined ? "–" : numbers.format(value));

function age(seconds) {
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function shape(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function cut(text, most) {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

function showVerdict(status) {
  const { live, ready } = status.health;
  const words = ready.ok ? "ready" : live.ok ? "not ready" : "a restart would help";
  at("verdict").textContent = words;
  at("verdict").className = ready.ok ? "good" : "bad";
  const problems = [...new Set([...live.problems, ...ready.problems])];
  at("problems").replaceChildren(...problems.map((each) => element("li", each)));
}

function showTotals(totals, latency) {
  const named = {
    read: "records read", written: "in the sinks", filtered: "filtered", dead_lettered: "dead letters",
    unresolved: "unresolved", retried: "retries", rows: "rows written",
  };
  const pair = (name, value) => {
    const made = element("div");
    made.append(element("dt", name), element("dd", value));
    return made;
  };
  const spread = (name) => [latency[`${name}_median_seconds`], latency[`${name}_p99_seconds`]]
    .map((each) => (each == null ? "–" : each < 1 ? `${Math.round(each * 1000)} ms` : age(each))).join(" / ");
  at("totals").replaceChildren(
    ...Object.entries(named).map(([key, name]) => pair(name, count(totals[key]))),
    pair("end to end, median / p99", spread("end_to_end")),
    pair("fetch to commit, median / p99", spread("processing")),
  );
}

function remember(status) {
  if (newest && newest.taken_at === status.taken_at) return;
  before = newest && newest.taken_at < status.taken_at ? newest : null; // else it was started anew
  newest = status;
}

function rate(status, id) {
  if (!before || status.age_seconds > STALE) return null;
  const grown = newest.nodes[id].done - before.nodes[id].done;
  return Math.max(0, grown) / (newest.taken_at - before.taken_at);
}

function showGraph(status) {
  const { nodes, edges } = status.graph;
  const place = {};
  let right = 0;
  let bottom = 0;
  for (const node of nodes) {
    const x = 8 + node.layer * (BOX.width + BOX.across);
    const y = 8 + node.row * (BOX.height + BOX.down);
    place[node.id] = { x, y };
    right = Math.max(right, x + BOX.width + 8);
    bottom = Math.max(bottom, y + BOX.height + 8);
  }
  const drawn = [];
  for (const edge of edges) {
    const from = place[edge.source];
    const to = place[edge.target];
    const [x1, y1] = [from.x + BOX.width, from.y + BOX.height / 2];
    const [x2, y2] = [to.x, to.y + BOX.height / 2];
    const bend = (x2 - x1) / 2;
    drawn.push(shape("path", { d: `M${x1} ${y1} C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }));
    if (edge.stream) {
      const label = { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 4, "text-anchor": "middle", class: "quiet" };
      drawn.push(shape("text", label, cut(edge.stream, 12)));
    }
  }
  for (const node of nodes) {
    const { x, y } = place[node.id];
    const figures = status.nodes[node.id];
    const speed = rate(status, node.id);
    const unit = node.kind === "source" ? "records/s" : node.kind === "sink" ? "rows/s" : "calls/s";
    const more = [];
    if (figures.in_flight) more.push(`${count(figures.in_flight)} at once`);
    if (figures.waiting) more.push(`${count(figures.waiting)} wait`);
    if (figures.failed) more.push(`${count(figures.failed)} failed`);
    const sink = status.sinks.find((each) => node.kind === "sink" && each.sink === node.name);
    const bad = sink && sink.failing_seconds !== null;
    const group = shape("g", { "data-node": node.name });
    group.append(
      shape("title", {}, `${node.name} (${node.kind})${bad ? `: ${sink.last_error}` : ""}`),
      shape("rect", { x, y, width: BOX.width, height: BOX.height, rx: 6, class: bad ? "node bad" : "node" }),
      shape("text", { x: x + 10, y: y + 18 }, cut(node.name, 23)),
      shape("text", { x: x + 10, y: y + 34, class: "quiet" },
        speed === null ? node.kind : `${count(Math.round(speed))} ${unit} · ${node.kind}`),
      shape("text", { x: x + 10, y: y + 49, class: "quiet" }, cut(more.join(", ") || `${count(figures.done)} in all`, 30)),
    );
    drawn.push(group);
  }
  const graph = at("graph");
  graph.setAttribute("width", right);
  graph.setAttribute("viewBox", `0 0 ${right} ${bottom}`);
  graph.replaceChildren(...drawn);
}

function bar(part) {
  // What is fetched has two thirds of the bar; the log behind it may be a million times as long.
  const end = part.log_end === null ? part.fetched_to : Math.max(part.log_end, part.fetched_to);
  const known = part.fetched_to - part.committed;
  const left = end - part.fetched_to;
  const width = known && left ? 80 : known ? 120 : 0;
  const scale = known ? width / known : 0;
  const drawing = shape("svg", { width: 120, height: 12, viewBox: "0 0 120 12" });
  const piece = (from, to, kind) => {
    const x = (from - part.committed) * scale;
    if (to > from) drawing.append(shape("rect", { x, y: 0, width: Math.max(1, (to - from) * scale), height: 12, class: kind }));
  };
  piece(part.committed, part.last_completed_offset, "done");
  piece(part.last_completed_offset, part.emitted_to, "flight");
  piece(part.emitted_to, part.fetched_to, "fetched");
  if (left) drawing.append(shape("rect", { x: width, y: 3, width: 120 - width, height: 6, class: "log" }));
  drawing.append(shape("title", {}, `committed ${part.committed}, last completed ${part.last_completed_offset}, emitted to `
    + `${part.emitted_to}, fetched to ${part.fetched_to}, log end ${end}`));
  return drawing;
}

function state(part) {
  if (part.halted) return `halted: ${part.halted}`;
  if (part.transaction_wait_seconds > 1) return `waits for a producer's transaction, ${age(part.transaction_wait_seconds)}`;
  if (part.failed) return `${count(part.failed)} to be tried again`;
  if (part.lost) return `${count(part.lost)} lost at the source`;
  return part.lag ? "reading" : "caught up";
}

function showPartitions(status) {
  const rows = status.partitions.map((part) => {
    const row = element("tr", undefined, part.halted ? "bad" : "");
    row.dataset.partition = part.partition;
    const drawing = element("td");
    drawing.append(bar(part));
    const open = part.open_transactions === null ? "–"
      : `${count(part.open_transactions)} (committed ${count(part.committed_txid)})`;
    row.append(
      element("td", part.partition), drawing, element("td", count(part.committed)),
      element("td", count(part.last_completed_offset)), element("td", count(part.log_end)), element("td", count(part.lag)),
      element("td", count(part.pending)), element("td", age(part.oldest_pending_seconds)),
      element("td", count(part.epoch)), element("td", open), element("td", state(part), "text"),
    );
    return row;
  });
  for (const [name, why] of Object.entries(status.halted)) {
    if (status.partitions.some((part) => part.partition === name)) continue;
    const row = element("tr", undefined, "bad");
    const reason = element("td", `halted: ${why}`, "text");
    reason.colSpan = 10;
    row.append(element("td", name), reason);
    rows.push(row);
  }
  at("partitions").tBodies[0].replaceChildren(...rows);
  const left = status.partitions_total - status.partitions.length;
  at("left-out").textContent = left ? `The ${status.partitions.length} worst off of ${count(status.partitions_total)} are shown.` : "";
}

function showFailures(failures) {
  at("failures").tBodies[0].replaceChildren(...failures.map((each) => {
    const row = element("tr");
    row.append(
      element("td", age(each.seconds_ago)), element("td", each.step, "text"), element("td", each.error_class, "text"),
      element("td", each.error, "text"), element("td", count(each.count)),
    );
    return row;
  }));
  at("no-failures").hidden = failures.length > 0;
}

function show(status) {
  at("name").textContent = status.pipeline;
  document.title = `${status.pipeline} · Headrace`;
  showVerdict(status);
  if (status.taken_at === null) return;
  remember(status);
  showTotals(status.totals, status.latency);
  showGraph(status);
  showPartitions(status);
  showFailures(status.failures);
  document.body.dataset.looks = Number(document.body.dataset.looks) + 1;
}

// The server draws the charts, so that they are there without a script: they are taken from the page anew.
async function showCharts() {
  const answer = await fetch(".", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  at("charts").replaceWith(page.getElementById("charts"));
  charted = Date.now();
}

async function look() {
  try {
    const answer = await fetch("status.json", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    show(await answer.json());
    if (Date.now() - charted >= CHARTS_EVERY) await showCharts();
  } catch (error) {
    at("verdict").textContent = `no answer at ${new Date().toLocaleTimeString()}; what is shown is older`;
    at("verdict").className = "bad";
  }
  setTimeout(look, SECOND);
}

look();
