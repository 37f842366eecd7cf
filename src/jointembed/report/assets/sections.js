"use strict";

const VERDICTS = { good: "✓ good", warn: "! careful", unknown: "? not known" };
const GALLERIES = {
  strangest: "Strangest", typical: "Most typical", least_certain: "Least certain", most_certain: "Most certain",
};

function summary(run) {
  byId("sentences").replaceChildren(...run.summary.sentences.map((text) => make("p", { textContent: text })));
  byId("checks").replaceChildren(
    ...run.summary.checks.map((check) =>
      make("li", { className: check.verdict }, make("strong", { textContent: check.name }),
        make("span", { className: "verdict", textContent: VERDICTS[check.verdict] }), make("br"), check.text)),
  );
  byId("next").replaceChildren(...run.summary.next.map((text) => make("li", { textContent: text })));
}

function compare(facts) {
  const value = (run, ...path) => path.reduce((found, key) => found?.[key], run);
  const share = (found) => (found === undefined || found === null ? "–" : perCent(found));
  const rows = [
    ["method", (run) => run.method],
    ["backbone", (run) => name(run.backbone)],
    ["images trained on", (run) => number(run.training.images)],
    ["epochs", (run) => number(run.history.epochs)],
    ["minutes", (run) => number(run.history.minutes, 3)],
    ["effective rank", (run) => number(value(run, "geometry", "effective_rank"), 3)],
    ["k-NN accuracy", (run) => share(value(run, "evaluation", "accuracy", "k-NN", "value"))],
    ["linear accuracy", (run) => share(value(run, "evaluation", "accuracy", "linear", "value"))],
    ["calibration error of k-NN", (run) => share(value(run, "evaluation", "reliability", "ece"))],
    ["AURC by posterior variance", (run) => number(value(run, "evaluation", "risk_coverage", "posterior variance", "aurc"))],
    ...["blur", "noise", "occlusion"].map((kind) => [
      `AUROC, ${kind}`, (run) => share(run.spoilt?.rows.find((row) => row.corruption === kind)?.auroc)]),
  ];
  table(byId("comparison"), ["", ...facts.runs.map((run, i) => {
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = PALETTE[i % PALETTE.length];
    return make("span", {}, swatch, name(run.name));
  })], rows.map(([title, of]) => [title, ...facts.runs.map(of)]));
}

function extremes(run, map, classes) {
  if (leaveOut("extremes", run.missing.extremes ?? (Object.keys(run.extremes).length ? "" : run.missing.alarm))) return;
  const galleries = Object.entries(run.extremes).flatMap(([kind, indices]) => {
    const values = kind.endsWith("certain") ? run.uncertainty : run.scores[run.kind];
    const what = kind.endsWith("certain") ? "posterior variance below each image" : `anomaly score (${run.kind}) below each image`;
    return [
      make("h3", { textContent: GALLERIES[kind] }, make("span", { className: "muted", textContent: ` · ${what}` })),
      make("div", { className: "gallery" }, ...indices.map((i) =>
        make("figure", {}, map.tile(i, 72), make("figcaption", { textContent: number(values[i]) })))),
    ];
  });
  if (!run.uncertainty) galleries.push(make("p", { className: "note", textContent: `No least and most certain images: ${run.why_no_uncertainty}` }));
  byId("galleries").replaceChildren(...galleries);
  byId("class-variance-box").hidden = !run.class_variance;
  if (run.class_variance) classVariance(byId("class-variance"), run.class_variance, classes);
}

function alarm(run, count) {
  if (leaveOut("alarm", run.missing.alarm)) return;
  const slider = byId("rate");
  slider.max = run.alarm.steps.length - 1;
  slider.value = run.alarm.chosen;
  slider.oninput = () => {
    const step = run.alarm.steps[Number(slider.value)];
    byId("rate-value").textContent = perCent(step.rate);
    slider.setAttribute("aria-valuetext", perCent(step.rate));
    const many = `${number(step.above)} of ${number(count)} images (${perCent(step.above / count)})`;
    const known = `${number(run.alarm.known_images)} ${run.alarm.known === "held_out" ? "held-out" : "training"} images`;
    const truth = step.low === null
      ? `Set by ${known}, as none were held out: the true rate is probably higher.`
      : `Set by ${known}: the true rate is ${perCent(step.low)} to ${perCent(step.high)} (95 % interval).`;
    const beyond = run.alarm.histogram.beyond;
    const last = beyond ? ` The last bar holds ${number(beyond)} images whose scores lie further to the right.` : "";
    byId("above").replaceChildren(make("strong", { id: "above-count", textContent: many }),
      ` are above the threshold of ${number(step.value)}. ${truth}${last}`);
    histogram(byId("histogram"), run.alarm, step);
  };
  slider.oninput();
}

function samples(run, map) {
  if (leaveOut("samples", run.missing.samples)) return Promise.resolve();
  const { nearest, pictures, ratio } = run.samples;
  byId("sample-note").textContent =
    `A draw is typically ${number(ratio, 3)} times as far from its nearest image as images are from each other` +
    ` (median distances). ${pictures ? "The first picture of each row is the draw, decoded." : "The run has no decoder, so only the nearest images are shown."}`;
  const decoded = pictures && new Sprites(pictures);
  return (decoded ? decoded.ready() : Promise.resolve()).then(() => {
    byId("sample-rows").replaceChildren(...nearest.map((indices, i) => {
      const draw = decoded ? decoded.draw(i, 64, `draw ${i + 1}, decoded`) : make("span", { textContent: `draw ${i + 1}` });
      draw.classList.add("draw", ...(decoded ? [] : ["none"]));
      return make("div", { className: "row" }, draw, ...indices.map((index) => map.tile(index, 48)));
    }));
  });
}

function patches(run, map) {
  if (leaveOut("patches", run.missing.patches)) return Promise.resolve();
  const colours = new Sprites(run.patches.pictures);
  return colours.ready().then(() => {
    byId("patch-rows").replaceChildren(...run.patches.rows.map((index, i) =>
      make("figure", {}, make("div", {}, map.tile(index, 66), colours.draw(i, 66, "its patches in colour")))));
  });
}

function evaluation(run, classes) {
  if (leaveOut("evaluation", run.missing.evaluation)) return;
  const found = run.evaluation;
  byId("evaluation-note").textContent =
    `${number(found.train_images)} images with labels, tested on ${number(found.test_images)} others (${found.split}). ` +
    `Brackets are 95 % intervals for the choice of test images. "jointembed evaluate" measures on all images.`;
  const rows = Object.entries(found.accuracy).map(([what, { value, interval }]) =>
    [what === "k-NN" ? `k-NN, k = ${found.k}` : what, perCent(value), `${perCent(interval[0])} – ${perCent(interval[1])}`]);
  rows.push(["always the most frequent class", perCent(found.chance), ""]);
  for (const [shots, { mean, std }] of Object.entries(found.few_shot))
    rows.push([`linear, ${shots} label${shots === "1" ? "" : "s"} per class`, perCent(mean), `± ${perCent(std)} over draws`]);
  const target = make("table", { id: "accuracy-table" });
  table(target, ["predictor", "accuracy", ""], rows);
  byId("accuracies").replaceChildren(make("div", { className: "scroll", tabindex: "0", role: "region", "aria-label": "Table of accuracies" }, target));
  reliability(byId("reliability"), found.reliability);
  riskCoverage(byId("risk"), found.risk_coverage);
  byId("confusion-box").hidden = !found.confusion;
  if (found.confusion) confusion(found.confusion, classes);
}

function confusion(counts, classes) {
  const title = (index) => name(classes[index] ?? String(index));
  const short = (index) => make("span", {}, title(index));
  const head = make("tr", {}, make("td"), ...counts.map((_, i) => make("th", { scope: "col" }, short(i))));
  const rows = counts.map((row, i) => {
    const total = row.reduce((a, b) => a + b, 0);
    return make("tr", {}, make("th", { scope: "row" }, short(i)), ...row.map((count) => {
      const cell = make("td", { textContent: number(count) });
      const share = total ? count / total : 0;
      cell.style.background = `color-mix(in srgb, var(--accent) ${Math.round(70 * share)}%, var(--surface))`;
      return cell;
    }));
  });
  byId("confusion").replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
}

function detection(run) {
  if (leaveOut("detection", run.missing.spoilt ?? (run.spoilt ? "" : run.missing.alarm))) return;
  byId("detection-note").textContent =
    `${number(run.spoilt.images)} images against the same images, spoilt on purpose (severity ${run.spoilt.severity}); no ` +
    `labels are needed. AUROC is the chance that a spoilt image scores above a clean one: 50 % is no skill, 100 % is perfect.`;
  table(byId("detections"), ["spoilt by", "AUROC", "average precision", "false alarms at 95 % caught"],
    run.spoilt.rows.map((row) => [row.corruption, perCent(row.auroc), perCent(row.aupr), perCent(row.fpr95)]));
}

function settings(run) {
  table(byId("settings-table"), ["setting", "value"], run.settings.map(([what, value]) => [name(what), name(value)]));
  for (const cell of byId("settings-table").querySelectorAll(".number")) cell.classList.remove("number");
}
