"use strict";

async function start() {
  const facts = JSON.parse(byId("facts").textContent);
  const { runs, images } = facts;
  const several = runs.length > 1;
  byId("title").textContent = several ? "Comparison of runs" : runs[0].name;
  byId("subtitle").textContent = images
    ? `${number(images.count)} of ${number(images.total)} images of “${images.source}”`
    : "The training only: no images were given.";
  byId("footer").textContent = `Written by jointembed ${facts.version}. This file holds everything it shows and asks no network for anything.`;
  for (const id of ["histogram", "reliability", "risk", "class-variance"]) byId(id).className = "plot tall";

  const sprites = images && new Sprites(images);
  await sprites?.ready();
  const map = images && new ImageMap(images, sprites);
  const classes = images?.classes ?? [];

  byId("compare").hidden = !several;
  byId("chooser").hidden = !several;
  byId("run").replaceChildren(...runs.map((run, i) => make("option", { value: i, textContent: run.name })));
  const sections = [...document.querySelectorAll("main section:not([hidden])")];
  byId("sections").replaceChildren(...sections.map((section) =>
    make("li", {}, make("a", { href: `#${section.id}`, textContent: section.querySelector("h2").textContent }))));

  async function show() {
    const run = runs[Number(byId("run").value)];
    summary(run);
    if (several) compare(facts);
    if (!leaveOut("curves", runs.every((each) => each.history.missing) ? run.history.missing : "")) curves(facts);
    if (!leaveOut("map", run.missing.map)) map.setRun(run);
    extremes(run, map, classes);
    alarm(run, images?.count);
    evaluation(run, classes);
    detection(run);
    settings(run);
    await Promise.all([samples(run, map), patches(run, map)]);
  }

  byId("run").addEventListener("change", show);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  await show();
  document.documentElement.dataset.ready = "true";
}

start();
