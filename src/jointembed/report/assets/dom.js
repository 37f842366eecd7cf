"use strict";

// Text from outside reaches the page through textContent only.
const byId = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// A name that may be in any script: its direction must not spill into its surroundings.
const name = (text) => make("bdi", { textContent: text, title: text });

function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(digits))).replace(/-/g, "−");
}

const perCent = (share, digits = 3) => `${number(100 * share, digits)} %`;

function table(target, head, rows) {
  const cell = (tag, value, first) => {
    const element = make(tag, first ? {} : { className: "number" });
    element.append(value instanceof Node ? value : String(value));
    return element;
  };
  const line = (tag, values) => make("tr", {}, ...values.map((value, i) => cell(tag, value, i === 0)));
  const header = line("th", head);
  for (const th of header.children) th.scope = "col";
  target.replaceChildren(make("thead", {}, header), make("tbody", {}, ...rows.map((row) => line("td", row))));
}

// Thumbnails are parts of a few large pictures; see sprites.py.
class Sprites {
  constructor(about) {
    this.about = about;
    this.pictures = about.sheets.map((url) => make("img", { src: url }));
  }

  ready() {
    return Promise.all(this.pictures.map((picture) => picture.decode()));
  }

  draw(index, side, label) {
    const { cell, columns, per_sheet: perSheet, sizes } = this.about;
    const [width, height] = sizes.length === 1 ? sizes[0] : sizes[index];
    const scale = side / Math.max(width, height);
    const canvas = make("canvas", { width: Math.round(width * scale) || 1, height: Math.round(height * scale) || 1 });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    canvas.dataset.image = index;
    const place = index % perSheet;
    const [x, y] = [(place % columns) * cell, Math.floor(place / columns) * cell];
    const context = canvas.getContext("2d");
    context.imageSmoothingEnabled = scale < 1;
    context.drawImage(this.pictures[Math.floor(index / perSheet)], x, y, width, height, 0, 0, canvas.width, canvas.height);
    return canvas;
  }
}

// A sentence in place of a section for which there is nothing to show.
function leaveOut(section, why) {
  const element = byId(section);
  element.querySelectorAll(":scope > :not(h2)").forEach((child) => (child.hidden = Boolean(why)));
  element.querySelector(":scope > .note")?.remove();
  if (why) element.append(make("p", { className: "note", textContent: `Left out. ${why}` }));
  return Boolean(why);
}
