"use strict";

const LISTED = 200; // images in the list at a time

class ImageMap {
  constructor(images, sprites) {
    this.images = images;
    this.sprites = sprites;
    this.labels = images.labels;
    this.hidden = new Set();
    this.selected = null;
    this.box = byId("map-plot");
    byId("search").addEventListener("input", () => this.show());
    byId("search").addEventListener("keydown", (event) => this.leaveSearch(event));
    byId("colour").addEventListener("change", () => this.show());
    byId("matches").addEventListener("keydown", (event) => this.walk(event));
    byId("all-labels").addEventListener("click", () => this.setLabels(true));
    byId("no-labels").addEventListener("click", () => this.setLabels(false));
    if (this.labels) this.listLabels();
  }

  label(index) {
    if (!this.labels) return null;
    return this.labels[index] < 0 ? "no label" : this.images.classes[this.labels[index]];
  }

  setRun(run) {
    this.run = run;
    const chosen = byId("projections").querySelector("input:checked")?.value ?? "t-SNE";
    byId("projections").replaceChildren(
      ...Object.keys(run.maps).map((kind) => {
        const input = make("input", { type: "radio", name: "projection", value: kind, checked: kind === chosen });
        input.addEventListener("change", () => this.show());
        return make("label", {}, input, ` ${kind}`);
      }),
    );
    this.colours = {};
    if (this.labels) this.colours["label"] = null;
    if (run.uncertainty) this.colours["uncertainty (posterior variance)"] = run.uncertainty;
    for (const [kind, values] of Object.entries(run.scores)) this.colours[`anomaly score: ${kind}`] = values;
    const before = byId("colour").value;
    byId("colour").replaceChildren(...Object.keys(this.colours).map((text) => make("option", { textContent: text })));
    if (before in this.colours) byId("colour").value = before;
    this.show();
    if (this.selected !== null) this.select(this.selected);
  }

  listLabels() {
    byId("label-box").hidden = false;
    const present = [...new Set(this.labels)].sort((a, b) => a - b);
    byId("labels").replaceChildren(
      ...present.map((label) => {
        const input = make("input", { type: "checkbox", checked: true });
        input.dataset.label = label;
        input.addEventListener("change", () => {
          if (input.checked) this.hidden.delete(label);
          else this.hidden.add(label);
          this.show();
        });
        const swatch = make("span", { className: "swatch" });
        swatch.style.background = classColour(label);
        return make("label", {}, input, swatch, name(label < 0 ? "no label" : this.images.classes[label]));
      }),
    );
  }

  setLabels(shown) {
    for (const input of byId("labels").querySelectorAll("input")) input.checked = shown;
    this.hidden = new Set(shown ? [] : this.labels);
    this.show();
  }

  // The images that search and labels leave.
  matching() {
    const wanted = byId("search").value.trim().toLowerCase();
    const found = [];
    for (let i = 0; i < this.images.count; i++) {
      if (this.labels && this.hidden.has(this.labels[i])) continue;
      if (wanted && !this.images.names[i].toLowerCase().includes(wanted)) continue;
      found.push(i);
    }
    return found;
  }

  show() {
    this.shown = this.matching();
    const total = this.images.count;
    const rest = this.shown.length > LISTED ? `; the first ${LISTED} are listed` : "";
    byId("count").textContent = `${number(this.shown.length)} of ${number(total)} images${rest}`;
    byId("matches").replaceChildren(...this.shown.slice(0, LISTED).map((i) => this.option(i)));
    this.mark();
    this.draw();
  }

  option(index) {
    const text = this.label(index) === null ? "" : ` · ${this.label(index)}`;
    const option = make("li", { role: "option" });
    option.append(name(this.images.names[index]), make("bdi", { className: "muted", textContent: text }));
    option.dataset.image = index;
    option.addEventListener("click", () => this.select(index));
    return option;
  }

  // The selected image is where Tab enters the list, or else the first one.
  mark() {
    const options = [...byId("matches").children];
    const selected = options.find((option) => Number(option.dataset.image) === this.selected);
    for (const option of options) {
      option.setAttribute("aria-selected", String(option === selected));
      option.tabIndex = option === (selected ?? options[0]) ? 0 : -1;
    }
  }

  leaveSearch(event) {
    const first = byId("matches").firstElementChild;
    if (event.key !== "ArrowDown" || !first) return;
    event.preventDefault();
    this.go(first);
  }

  walk(event) {
    const here = event.target.closest("li");
    const options = byId("matches").children;
    if (!here) return;
    const goals = { ArrowDown: here.nextElementSibling, ArrowUp: here.previousElementSibling, Home: options[0], End: options[options.length - 1], Enter: here, " ": here };
    if (!(event.key in goals)) return;
    event.preventDefault();
    if (goals[event.key]) this.go(goals[event.key]);
    else if (event.key === "ArrowUp") byId("search").focus();
  }

  go(option) {
    option.focus();
    this.select(Number(option.dataset.image));
  }

  points(indices, marker) {
    const kind = byId("projections").querySelector("input:checked").value;
    const { x, y } = this.run.maps[kind];
    return { type: "scatter", mode: "markers", x: indices.map((i) => x[i]), y: indices.map((i) => y[i]), customdata: indices, hoverinfo: "none", marker };
  }

  marker() {
    const values = this.colours[byId("colour").value];
    const size = this.images.count > 2000 ? 5 : this.images.count > 500 ? 7 : 9;
    const line = { width: 0 };
    if (values === undefined) return { size, line, color: tone("--accent"), opacity: 0.8 };
    if (values === null) return { size, line, opacity: 0.85, color: this.shown.map((i) => classColour(this.labels[i])) };
    const finite = values.filter((value) => value !== null).sort((a, b) => a - b);
    const at = (share) => finite[Math.round(share * (finite.length - 1))];
    const colorbar = { orientation: "h", thickness: 8, len: 0.6, y: 0, yanchor: "bottom", x: 0.5, outlinewidth: 0, tickfont: { color: tone("--muted") } };
    return { size, line, opacity: 0.9, color: this.shown.map((i) => values[i]), colorscale: "Viridis", cmin: at(0.01), cmax: at(0.99), colorbar, showscale: true };
  }

  draw() {
    const ring = (color, size, width) => ({ size, color: "rgba(0,0,0,0)", line: { color, width } });
    const picked = this.selected === null ? [] : [this.selected];
    const near = picked.flatMap((i) => this.run.neighbours[i]);
    const traces = [this.points(this.shown, this.marker()), this.points(near, ring(tone("--ink"), 12, 1.5)), this.points(picked, ring(tone("--alarm"), 16, 3))];
    const bare = { visible: false, range: undefined };
    const extra = {
      xaxis: bare, yaxis: { ...bare, scaleanchor: "x" }, hovermode: "closest", dragmode: still() ? false : "pan",
      margin: { l: 0, r: 0, t: 0, b: 0 }, uirevision: `${this.run.name} ${byId("projections").querySelector("input:checked").value}`,
    };
    const config = { responsive: true, scrollZoom: false, displayModeBar: true, displaylogo: false, modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d"]] };
    const first = !this.box.classList.contains("js-plotly-plot");
    plot(this.box, traces, extra, config);
    if (!first) return;
    this.box.on("plotly_hover", (event) => this.hover(event));
    this.box.on("plotly_unhover", () => (byId("hover").hidden = true));
    this.box.on("plotly_click", (event) => this.select(event.points[0].customdata));
  }

  values(index) {
    const rows = [["name", name(this.images.names[index])]];
    if (this.label(index) !== null) rows.push(["label", name(this.label(index))]);
    if (this.run.uncertainty) rows.push(["variance", number(this.run.uncertainty[index])]);
    if (this.run.kind) rows.push([`score (${this.run.kind})`, number(this.run.scores[this.run.kind][index])]);
    return rows;
  }

  hover(event) {
    const index = event.points[0].customdata;
    const box = byId("hover");
    box.replaceChildren(this.sprites.draw(index, 112, this.images.names[index]));
    for (const [what, value] of this.values(index)) box.append(make("p", {}, what === "name" || what === "label" ? "" : `${what} `, value));
    box.hidden = false;
    const at = this.box.getBoundingClientRect();
    const [x, y] = [event.event.clientX - at.left, event.event.clientY - at.top];
    box.style.left = `${x + 16 + box.offsetWidth > at.width ? Math.max(x - 16 - box.offsetWidth, 0) : x + 16}px`;
    box.style.top = `${Math.max(Math.min(y - 40, at.height - box.offsetHeight), 0)}px`;
  }

  tile(index, side) {
    const label = [this.images.names[index], this.label(index)].filter((text) => text !== null).join(", ");
    const button = make("button", { type: "button", className: "tile", title: label }, this.sprites.draw(index, side, label));
    button.addEventListener("click", () => this.select(index, true));
    return button;
  }

  select(index, jump = false) {
    this.selected = index;
    const rows = this.values(index).flatMap(([what, value]) => [make("dt", { textContent: what }), make("dd", {}, value)]);
    byId("detail").replaceChildren(
      make("div", { className: "top" }, this.sprites.draw(index, 112, this.images.names[index]), make("dl", {}, ...rows)),
      make("h3", { textContent: "Its nearest neighbours" }),
      make("div", { className: "tiles" }, ...this.run.neighbours[index].map((i) => this.tile(i, 64))),
    );
    byId("detail").dataset.image = index;
    this.mark();
    this.draw();
    if (!jump) return;
    if (!byId("map").contains(document.activeElement) && document.activeElement !== document.body) byId("map-box").scrollIntoView();
    byId("detail").focus({ preventScroll: true });
  }
}
