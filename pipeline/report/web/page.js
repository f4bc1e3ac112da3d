"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

/** An element with text or children; texts are never read as HTML. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function makeTable(label, headings, rows) {
  const head = make("tr", {}, ...headings.map((text) => make("th", { scope: "col" }, text)));
  const body = rows.map((row) => make("tr", {}, ...row.map((text) => make("td", {}, text))));
  const table = make("table", { "aria-label": label }, make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": label }, table);
}

/* Sorting: the first press puts numbers in falling order, texts in rising order; missing numbers stay last. */
function sortBy(heading) {
  const header = heading.parentElement, place = [...header.children].indexOf(heading);
  const body = heading.closest("table").tBodies[0], numeric = heading.classList.contains("numeric");
  const current = heading.getAttribute("aria-sort");
  const falling = current ? current === "ascending" : numeric;
  for (const other of header.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[place];
    return [row, numeric ? (cell.dataset.order === undefined ? null : Number(cell.dataset.order)) : cell.textContent];
  });
  keyed.sort(([, a], [, b]) => {
    if (a === null || b === null) return (a === null) - (b === null);
    const order = numeric ? a - b : a.localeCompare(b, "en", { numeric: true });
    return falling ? -order : order;
  });
  body.append(...keyed.map(([row]) => row));
}
for (const button of document.querySelectorAll("table.sortable thead button"))
  button.addEventListener("click", () => sortBy(button.parentElement));

/* The filter hides rows of tables and what belongs to them in the figures. */
const filter = document.getElementById("filter");
filter.addEventListener("input", () => {
  const wanted = filter.value.toLowerCase().split(/\s+/);
  for (const element of document.querySelectorAll("[data-row]")) {
    const name = element.dataset.row.toLowerCase();
    element.classList.toggle("hidden", !wanted.every((word) => name.includes(word)));
  }
  const rows = [...document.querySelectorAll("#results tbody tr")];
  const shown = rows.filter((row) => !row.classList.contains("hidden")).length;
  document.getElementById("shown").textContent = filter.value ? `${shown} of ${rows.length} rows` : "";
});

/* Origins */
const dialog = document.getElementById("origin");
function showOrigin(sheet) {
  document.getElementById("origin-title").textContent = sheet.title;
  const content = document.getElementById("origin-content");
  const facts = sheet.facts.flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]);
  content.replaceChildren(make("dl", {}, ...facts));
  if (sheet.runs.length) {
    const rows = sheet.runs.map(([index, task, value]) => {
      const run = data.runs[index];
      return [run.seed, task, value, run.commit, run.file.replace("TASK", task.split(":")[0]), run.signature];
    });
    content.append(make("h3", {}, "Runs"),
      makeTable("Runs", ["seed", "task", "value", "commit", "file", "signature"], rows));
  }
  if (sheet.missing.length)
    content.append(make("h3", {}, "Missing"), makeTable("Missing", ["seed", "task", "reason"], sheet.missing));
  const settings = sheet.settings === null ? [] : data.settings[sheet.settings];
  if (settings.length)
    content.append(make("h3", {}, `Configuration, where it differs from ${data.baseline}`),
      makeTable("Configuration", ["key", "here", data.baseline], settings));
  dialog.showModal();
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.number");
  if (button) showOrigin(data.sheets[button.dataset.sheet]);
  if (event.target === dialog) dialog.close();
});

/* Mixing ratios over training */
const SVG = "http://www.w3.org/2000/svg";
function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
function colour(ratio) {
  const place = Math.min(ratio, 0.9999) * (STOPS.length - 1), index = Math.floor(place), part = place - index;
  return `rgb(${STOPS[index].map((value, i) => Math.round(value + part * (STOPS[index + 1][i] - value)))})`;
}
function heatMap(run, part) {
  const reports = run[part], layers = reports[0].length, width = 300, height = 300, left = 42, top = 24;
  const svg = draw("svg", { viewBox: "0 0 352 372", role: "img", "aria-label": `alpha of the ${part}s, by layer and update` });
  const w = width / reports.length, h = height / layers;
  svg.append(draw("text", { x: left, y: 15 }, `${part}s`));
  reports.forEach((report, column) => report.forEach((value, layer) => {
    const rect = draw("rect", { x: left + column * w, y: top + height - (layer + 1) * h, width: w + 0.3, height: h + 0.3,
      fill: colour(value / 100) });
    rect.append(draw("title", {}, `layer ${layer}, update ${run.steps[column]}: ${(value / 100).toFixed(2)}`));
    svg.append(rect);
  }));
  const every = Math.ceil(layers / 8);
  for (let layer = 0; layer < layers; layer += every)
    svg.append(draw("text", { x: left - 6, y: top + height - (layer + 0.5) * h + 5, "text-anchor": "end" }, layer));
  svg.append(draw("text", { x: left, y: top + height + 18 }, `update ${run.steps[0]}`),
    draw("text", { x: left + width, y: top + height + 18, "text-anchor": "end" }, run.steps.at(-1)));
  for (let i = 0; i < 50; i++)
    svg.append(draw("rect", { x: left + 30 + i * 4.8, y: 352, width: 5, height: 10, fill: colour(i / 49) }));
  svg.append(draw("text", { x: left + 22, y: 362, "text-anchor": "end" }, "0"), draw("text", { x: left + 278, y: 362 }, "1"));
  return svg;
}
function showRatios(run) {
  document.getElementById("heat").replaceChildren(heatMap(run, "key"), heatMap(run, "value"));
  const rows = run.key[0].flatMap((_, layer) => ["key", "value"].map((part) =>
    [String(layer), part, ...run[part].map((report) => (report[layer] / 100).toFixed(2))]));
  document.getElementById("heat-numbers").replaceChildren(
    makeTable("Mixing ratios by update", ["layer", "of", ...run.steps.map(String)], rows));
}
const select = document.getElementById("run");
if (select) {
  select.append(...data.ratios.map((run, index) => make("option", { value: index }, run.label)));
  select.addEventListener("change", () => showRatios(data.ratios[select.value]));
  showRatios(data.ratios[0]);
}
