// What is wrong with the pages in the frames of this page; written as JSON into #found.

const LEAST_CONTRAST = 4.5;
const SLACK = 1; // pixels that rounding may add

const channels = (color) => {
  const found = color.match(/[\d.]+/g).map(Number);
  return found.length > 3 ? found : [...found, 1];
};

const luminance = (color) => {
  const linear = color.slice(0, 3).map((channel) => {
    const part = channel / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};

const contrast = (one, other) => {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};

// The paper under an element: the background of the nearest element that has one.
const paper = (view, element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = channels(view.getComputedStyle(at).backgroundColor);
    if (color[3] === 1) return color;
    if (color[3] > 0) return null; // half transparent: nobody can say
  }
  return null;
};

const inside = (inner, outer) =>
  inner.left >= outer.left - SLACK && inner.right <= outer.right + SLACK &&
  inner.top >= outer.top - SLACK && inner.bottom <= outer.bottom + SLACK;

const overlap = (one, other) =>
  Math.min(one.right, other.right) - Math.max(one.left, other.left) > SLACK &&
  Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > SLACK;

// Texts among these that lie over each other, or outside of what holds them.
const misplaced = (texts, holder, told) => {
  const boxes = texts.map((text) => text.getBoundingClientRect());
  const outer = holder.getBoundingClientRect();
  boxes.forEach((box, i) => {
    if (!box.width || !box.height) told.push(`not drawn: ${texts[i].textContent}`);
    if (!inside(box, outer)) told.push(`cut: ${texts[i].textContent}`);
    for (let j = 0; j < i; j++) {
      if (overlap(box, boxes[j])) told.push(`over: ${texts[i].textContent}, ${texts[j].textContent}`);
    }
  });
};

const examine = (frame) => {
  const view = frame.contentWindow;
  const page = frame.contentDocument;
  page.querySelectorAll("details").forEach((one) => { one.open = true; });
  const told = { overflow: [], texts: [], contrast: [], captions: [] };
  const width = page.documentElement.clientWidth;
  if (page.documentElement.scrollWidth > width) {
    const wide = [...page.body.querySelectorAll("*")].find(
      (one) => one.getBoundingClientRect().right > width + SLACK && !one.closest(".wide, pre"));
    told.overflow.push(`${page.documentElement.scrollWidth} > ${width}: ${wide?.outerHTML.slice(0, 200)}`);
  }
  page.querySelectorAll("svg").forEach((picture) => {
    misplaced([...picture.querySelectorAll("text")], picture, told.texts);
  });
  page.querySelectorAll(".legend").forEach((legend) => {
    misplaced([...legend.querySelectorAll("span")], legend.parentElement, told.texts);
  });
  page.querySelectorAll(".bars").forEach((bars) => {
    misplaced([...bars.children], bars, told.texts);
  });
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || seen.has(element)) continue;
    seen.add(element);
    if (element.tagName === "title" || element.tagName === "STYLE") continue;
    const style = view.getComputedStyle(element);
    const ink = channels(element.closest("svg") ? style.fill : style.color);
    const under = paper(view, element);
    const ratio = under && ink[3] === 1 ? contrast(ink, under) : 0;
    if (ratio < LEAST_CONTRAST) told.contrast.push(`${ratio.toFixed(2)}: ${element.outerHTML.slice(0, 120)}`);
  }
  page.querySelectorAll("figure").forEach((figure) => {
    const caption = figure.querySelector(":scope > figcaption");
    const title = caption?.querySelector("b")?.textContent ?? "";
    if (!title || caption.textContent.length < title.length + 20) {
      told.captions.push(figure.outerHTML.slice(0, 120));
    }
  });
  page.querySelectorAll("svg, .bars, .strip").forEach((picture) => {
    if (!picture.closest("figure")) told.captions.push(picture.outerHTML.slice(0, 120));
  });
  return {
    paper: view.getComputedStyle(page.body).backgroundColor,
    pictures: page.querySelectorAll("svg").length,
    ...told,
  };
};

addEventListener("load", () => {
  const found = {};
  document.querySelectorAll("iframe").forEach((frame) => { found[frame.id] = examine(frame); });
  document.getElementById("found").textContent = JSON.stringify(found);
});
