"use strict";

const PALETTE = ["#3b78d8", "#e8871e", "#2e9e6b", "#d2476b", "#8a63d2", "#9a6b4f", "#d977c4", "#7f8794", "#b3a11f", "#28a6b8"];

function classColour(index) {
  if (index < 0) return "#8b93a1";
  if (index < PALETTE.length) return PALETTE[index];
  return `hsl(${Math.round((index * 137.508) % 360)} 60% 52%)`; // the golden angle keeps neighbours apart
}

const tone = (variable) => getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
const still = () => window.matchMedia("(pointer: coarse)").matches;

// Plotly reads its texts as a kind of HTML.
const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function layout(extra = {}) {
  const axis = { gridcolor: tone("--line"), zeroline: false, linecolor: tone("--line"), automargin: true };
  return {
    margin: { l: 8, r: 8, t: 8, b: 8 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: tone("--ink") },
    showlegend: false,
    modebar: { bgcolor: "rgba(0,0,0,0)", color: tone("--muted"), activecolor: tone("--accent") },
    dragmode: false,
    hoverlabel: { bgcolor: tone("--surface"), bordercolor: tone("--line"), font: { color: tone("--ink") } },
    ...extra,
    xaxis: { ...axis, ...extra.xaxis },
    yaxis: { ...axis, ...extra.yaxis },
  };
}

const LEGEND = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" };
const CONFIG = { displayModeBar: false, responsive: true };

function plot(target, traces, extra, config = CONFIG) {
  return Plotly.react(target, traces, layout(extra), config);
}

function curves(facts) {
  const titles = [...new Set(facts.runs.flatMap((run) => run.history.curves.map((curve) => curve.title)))];
  const grid = byId("curve-grid");
  grid.replaceChildren();
  for (const title of titles) {
    const target = make("div", { className: "plot", role: "img", "aria-label": `${title} over the epochs` });
    grid.append(make("figure", {}, make("figcaption", { textContent: title }), target));
    const traces = facts.runs.flatMap((run, i) =>
      run.history.curves
        .filter((curve) => curve.title === title)
        .map((curve) => ({
          x: curve.epoch,
          y: Object.values(curve.series)[0],
          mode: curve.epoch.length < 30 ? "lines+markers" : "lines",
          line: { color: PALETTE[i % PALETTE.length], width: 2 },
          marker: { size: 5 },
          hovertemplate: "epoch %{x}: %{y:.4g}<extra></extra>",
        })),
    );
    plot(target, traces, { xaxis: { title: { text: "epoch", standoff: 4 }, nticks: 6 }, yaxis: { nticks: 5 } });
  }
}

function histogram(target, alarm, step) {
  const { edges, images, known } = alarm.histogram;
  const middle = images.map((_, i) => (edges[i] + edges[i + 1]) / 2);
  const width = edges[1] - edges[0];
  const bars = {
    type: "bar", x: middle, y: images, width, name: "images of this report",
    marker: { color: middle.map((x) => tone(x > step.value ? "--alarm" : "--accent")) },
    hovertemplate: "score %{x:.4g}: %{y:.2%}<extra></extra>",
  };
  const outline = {
    x: middle, y: known, mode: "lines", line: { shape: "hvh", color: tone("--muted"), width: 1.5 },
    name: alarm.known === "held_out" ? "held-out training images" : "training images",
    hovertemplate: "score %{x:.4g}: %{y:.2%}<extra></extra>",
  };
  const line = { type: "line", x0: step.value, x1: step.value, y0: 0, y1: 1, yref: "paper", line: { color: tone("--alarm"), width: 2, dash: "dash" } };
  plot(target, [bars, outline], {
    bargap: 0, shapes: [line], showlegend: true, legend: LEGEND,
    xaxis: { title: { text: `anomaly score (${alarm.kind})`, standoff: 6 } },
    yaxis: { title: { text: "share of images", standoff: 6 }, tickformat: ".0%" },
  });
}

function classVariance(target, rows, classes) {
  const all = [...rows].sort((a, b) => a.mean - b.mean);
  const sorted = all.length > 40 ? [...all.slice(0, 20), ...all.slice(-20)] : all;
  target.style.height = `${80 + 26 * sorted.length}px`;
  plot(target, [{
    mode: "markers", x: sorted.map((row) => row.mean), y: sorted.map((_, i) => i),
    error_x: { array: sorted.map((row) => row.std), color: tone("--muted"), thickness: 1.5, width: 4 },
    marker: { size: 12, color: sorted.map((row) => classColour(row.label)) },
    customdata: sorted.map((row) => row.count), hovertemplate: "%{x:.4g}, mean of %{customdata} images<extra></extra>",
  }], {
    xaxis: { title: { text: "posterior variance", standoff: 6 } },
    yaxis: { tickvals: sorted.map((_, i) => i), ticktext: sorted.map((row) => plain(classes[row.label].slice(0, 30))) },
  });
}

function reliability(target, found) {
  const diagonal = { x: [0, 1], y: [0, 1], mode: "lines", line: { color: tone("--muted"), dash: "dot", width: 1 }, hoverinfo: "skip" };
  const points = {
    x: found.confidence, y: found.accuracy, mode: "lines+markers", line: { color: tone("--accent") },
    marker: { size: found.count.map((count) => 6 + 14 * Math.sqrt(count / Math.max(...found.count))) },
    customdata: found.count, hovertemplate: "said %{x:.0%}, right %{y:.0%}, %{customdata} images<extra></extra>",
  };
  plot(target, [diagonal, points], {
    xaxis: { range: [0, 1.02], tickformat: ".0%", title: { text: "share of votes", standoff: 6 } },
    yaxis: { range: [0, 1.02], tickformat: ".0%", title: { text: "share that is right", standoff: 6 } },
  });
}

function riskCoverage(target, found) {
  const first = (curve) => curve.coverage.findIndex((share) => share >= 0.05); // below, few images make much noise
  const traces = Object.entries(found).map(([order, curve], i) => ({
    x: curve.coverage.slice(first(curve)), y: curve.risk.slice(first(curve)), mode: "lines", name: plain(order), line: { color: PALETTE[i], width: 2 },
    hovertemplate: "answering %{x:.0%}: %{y:.1%} wrong<extra></extra>",
  }));
  plot(target, traces, {
    showlegend: true, legend: LEGEND,
    xaxis: { range: [0, 1], tickformat: ".0%", title: { text: "share of images answered", standoff: 6 } },
    yaxis: { rangemode: "tozero", tickformat: ".0%", title: { text: "error rate", standoff: 6 } },
  });
}
