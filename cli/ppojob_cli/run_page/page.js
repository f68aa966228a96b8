"use strict";
// Choosing runs, reading values off a chart, and finding a metric. Texts of a run become text nodes only.
const make = (name, text, className) => {
  const element = document.createElement(name);
  element.textContent = text;
  element.className = className || "";
  return element;
};

for (const box of document.querySelectorAll(".runs input")) {
  const choose = () => document.body.classList.toggle("hide" + box.value, !box.checked);
  box.addEventListener("change", choose);
  choose();
}

const seriesOf = (figure) =>
  [...figure.querySelectorAll("[data-at]")].map((line) => {
    const numbers = line.dataset.at.split(" ").map(Number);
    return {
      name: line.dataset.of,
      color: line.dataset.style,
      isHidden: () => getComputedStyle(line).display === "none",
      points: Array.from({ length: numbers.length / 2 }, (_, i) => [numbers[2 * i], numbers[2 * i + 1]]),
    };
  });

const nearest = (points, step) => {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < step) low = middle + 1;
    else high = middle;
  }
  const before = points[low - 1];
  return before && step - before[0] < points[low][0] - step ? before : points[low];
};

for (const figure of document.querySelectorAll("figure")) {
  const picture = figure.querySelector("svg");
  const { first, last, left, right } = Object.fromEntries(
    Object.entries(picture.dataset).map(([name, value]) => [name, Number(value)]));
  const cursor = picture.querySelector(".cursor");
  const tip = make("div", "", "tip");
  tip.hidden = true;
  figure.append(tip);
  let series;

  const show = (step) => {
    series ??= seriesOf(figure);
    const found = series.filter((one) => !one.isHidden()).map((one) => [one, nearest(one.points, step)]);
    if (!found.length) return;
    const at = found.reduce((best, [, point]) =>
      Math.abs(point[0] - step) < Math.abs(best - step) ? point[0] : best, found[0][1][0]);
    const x = left + ((at - first) / (last - first)) * (right - left);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    cursor.removeAttribute("display");
    tip.replaceChildren(make("div", "step " + at));
    for (const [one, point] of found) {
      const row = make("div", "");
      const value = String(point[1]) + (point[0] === at ? "" : " at " + point[0]);
      row.append(make("span", "", "swatch c" + one.color), make("span", one.name), make("b", value));
      tip.append(row);
    }
    tip.hidden = false;
    const box = picture.getBoundingClientRect(), frame = figure.getBoundingClientRect();
    const place = box.left - frame.left + (x / picture.viewBox.baseVal.width) * box.width;
    tip.style.left = Math.max(4, Math.min(place + 14, frame.width - tip.offsetWidth - 4)) + "px";
    tip.style.top = box.bottom - frame.top + 2 + "px";
  };
  const hide = () => {
    tip.hidden = true;
    cursor.setAttribute("display", "none");
  };
  const stepAt = (event) => {
    const box = picture.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * picture.viewBox.baseVal.width;
    return first + ((x - left) / (right - left)) * (last - first);
  };
  picture.addEventListener("pointermove", (event) => show(stepAt(event)));
  picture.addEventListener("pointerdown", (event) => show(stepAt(event)));
  picture.addEventListener("pointerleave", hide);
}

const search = document.querySelector("input[type=search]");
search?.addEventListener("input", () => {
  const word = search.value.trim().toLowerCase();
  for (const group of document.querySelectorAll(".others details")) {
    let any = false;
    for (const figure of group.querySelectorAll("figure")) {
      figure.hidden = !figure.dataset.name.toLowerCase().includes(word);
      any ||= !figure.hidden;
    }
    group.hidden = !any;
    group.open = any && word !== "";
  }
});

addEventListener("beforeprint", () => {
  for (const prompt of document.querySelectorAll(".sample details")) prompt.open = true;
});
