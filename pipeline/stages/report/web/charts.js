// Draws the charts, and gives them what the reader chose.
"use strict";

const HUES = {
  light: ["#0072B2", "#B84A00", "#00785A", "#A3487A", "#8A6100", "#2277AA", "#6A4C93", "#5F5F5F"],
  dark: ["#6CB6FF", "#FF9A66", "#45D6AA", "#EDA3CB", "#F0C050", "#9AD8FA", "#C2A8EE", "#B4B4B4"],
};
const views = {}; // by name of the chart
const filled = {}; // what was last asked for, by name of the chart: data sets, colours, look
const drawn = {}; // what it shows
const drawing = {}; // a promise a chart: the drawing under way

const isNarrow = () => window.innerWidth < 600;
const isDark = () => {
  const theme = document.documentElement.dataset.theme;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};

/** A colour of the page, as it is now. */
function pageColor(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(${name})`;
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

/** The look of all charts, from the colours of the page. */
function chartStyle() {
  const [ink, line] = [pageColor("--ink"), pageColor("--line")];
  const narrow = isNarrow();
  return {
    background: "transparent",
    font: getComputedStyle(document.body).fontFamily,
    range: { category: HUES[isDark() ? "dark" : "light"] },
    view: { stroke: null },
    axis: {
      labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line,
      labelFontSize: 12, titleFontSize: narrow ? 11 : 12, titleFontWeight: "normal", labelOverlap: true, labelFlush: false,
      labelLimit: narrow ? 150 : 420,
    },
    legend: {
      aria: false, // Vega does not keep its text up to date
      labelColor: ink, orient: "bottom", labelFontSize: 12, labelLimit: 260, symbolLimit: 0, symbolOpacity: 1,
      columns: narrow ? 1 : 3, symbolStrokeWidth: 2,
    },
    text: { color: ink },
    rule: { color: ink },
  };
}

/** A colour of a figure, lighter on dark ground. */
function onGround(hue) {
  if (!isDark()) return hue;
  const parts = [1, 3, 5].map((at) => parseInt(hue.slice(at, at + 2), 16));
  return `#${parts.map((part) => Math.round(0.65 * part + 0.35 * 255).toString(16).padStart(2, "0")).join("")}`;
}

/** Draw a chart into its place on the page, with the rows of its data sets by name.
 *
 * `hues` has the colour of each value that the chart is coloured by, in the order of the legend;
 * without it colours are the page's.
 */
function drawChart(name, sets, hues = null) {
  if (!document.getElementById(`chart-${name}`)) return;
  filled[name] = { sets, hues, look: JSON.stringify([hues, isDark()]) };
  // one after the other: what is asked for meanwhile is drawn once, with the last rows
  drawing[name] = (drawing[name] ?? Promise.resolve()).then(() => drawFilled(name));
}

async function drawFilled(name) {
  const asked = filled[name];
  const before = drawn[name];
  if (asked === before) return;
  drawn[name] = asked;
  if (asked.look === before?.look) {
    for (const [set, rows] of Object.entries(asked.sets)) views[name].data(set, rows);
    await views[name].runAsync();
    return;
  }
  views[name]?.finalize();
  const spec = { width: "container", ...structuredClone(CHARTS[name]), datasets: asked.sets };
  if (!spec.height) spec.height = (isNarrow() ? 52 : 22) * Math.max(...Object.values(asked.sets).map((rows) => rows.length));
  if (asked.hues) {
    const scale = { domain: Object.keys(asked.hues), range: Object.values(asked.hues).map(onGround) };
    for (const { encoding } of spec.layer) if (encoding.color?.field) encoding.color.scale = scale;
  }
  const options = { actions: false, renderer: "svg", config: chartStyle(), tooltip: { theme: "custom" } };
  const found = await vegaEmbed(document.getElementById(`chart-${name}`), spec, options);
  views[name] = found.view;
}

/** Copy a chart as an image; where that is not allowed, save it. */
async function copyImage(button) {
  const name = button.dataset.image;
  const view = views[name].background(pageColor("--ground"));
  const canvas = await view.toCanvas(3);
  const image = await new Promise((done) => canvas.toBlob(done, "image/png"));
  const said = await navigator.clipboard.write([new ClipboardItem({ "image/png": image })]).then(() => "copied", () => {
    const link = Object.assign(document.createElement("a"), { href: canvas.toDataURL(), download: `${name}.png` });
    link.click();
    return "saved";
  });
  button.nextElementSibling.textContent = said;
}

/** Draw all charts again: the colours of the page have changed. */
function restyleCharts() {
  for (const [name, { sets, hues }] of Object.entries(filled)) drawChart(name, sets, hues);
}
