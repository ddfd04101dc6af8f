// Brings the parts of the page that are marked with data-live up to date, every few seconds, and shows times
// in the viewer's zone. Nothing else needs a script.
"use strict";

const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "numeric", minute: "2-digit", second: "2-digit", timeZoneName: "short",
});
const FORMAT = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function localTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) {
      continue;
    }
    time.title = FORMAT.format(moment);
    if (time.hasAttribute("data-clock")) {
      time.textContent = CLOCK.format(moment);
    } else if (time.hasAttribute("data-exactly")) {
      time.textContent = FORMAT.format(moment);
    }
  }
}

// What the viewer has in hand: a part with it is not replaced.
function isInUse(part) {
  const selection = document.getSelection();
  const selected = selection && !selection.isCollapsed && part.contains(selection.anchorNode);
  const focused = document.activeElement;
  return selected || (part.contains(focused) && focused.matches("input:not([type=checkbox]), select, textarea"));
}

function checkedIn(part) {
  return new Set(Array.from(part.querySelectorAll("input[name]:checked"), (box) => box.value));
}

// What tells an element that can have the focus from the others of its part.
function keyOf(element) {
  return [element.tagName, element.getAttribute("href"), element.getAttribute("name"), element.getAttribute("value")].join(" ");
}

// The box above a list that ticks all of it. Without a script it is not there.
function boxesOf(all) {
  return Array.from(all.form.querySelectorAll("input[type=checkbox][name]"));
}

function showWhetherAllAreChecked() {
  for (const all of document.querySelectorAll("[data-select-all]")) {
    const checked = boxesOf(all).filter((box) => box.checked).length;
    all.checked = checked > 0 && checked === boxesOf(all).length;
    all.indeterminate = checked > 0 && !all.checked;
  }
}

function replace(part, fresh) {
  part.classList.remove("gone");
  if (part.innerHTML === fresh.innerHTML || isInUse(part)) {
    return;
  }
  const checked = checkedIn(part);
  const opened = Array.from(part.querySelectorAll("details"), (each) => each.open);
  const focused = part.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  part.replaceChildren(...fresh.childNodes);
  for (const box of part.querySelectorAll("input[type=checkbox][name]")) {
    box.checked = checked.has(box.value);
  }
  showWhetherAllAreChecked();
  part.querySelectorAll("details").forEach((each, index) => {
    each.open = opened[index] ?? each.open;
  });
  if (focused !== null) {
    const again = Array.from(part.querySelectorAll("a, button, input, summary")).find((each) => keyOf(each) === focused);
    again?.focus({ preventScroll: true });
  }
}

// Says above the page why it is not brought up to date; empty if it is. The same text is announced once.
function say(why) {
  const banner = document.getElementById("away");
  if (banner.textContent !== why) {
    banner.textContent = why;
  }
}

// Brings the page up to date by *fresh*, which is the same page or another one. Returns whether that was possible.
function apply(fresh, isGood) {
  const main = document.getElementById("main");
  const parts = Array.from(document.querySelectorAll("[data-live]"));
  const gone = parts.filter((part) => fresh.getElementById(part.id) === null);
  const isSame =
    gone.every((part) => part.dataset.live === "keep") &&
    Array.from(fresh.querySelectorAll("[data-live]")).every((its) => document.getElementById(its.id) !== null);
  if (isSame && parts.length > 0) {
    parts.filter((part) => !gone.includes(part)).forEach((part) => replace(part, fresh.getElementById(part.id)));
    gone.forEach((part) => part.classList.add("gone"));
  } else if (parts.length === 0 || (isGood && !isInUse(main))) {
    // The first page was an error, or a part of it has come or gone.
    main.replaceChildren(...fresh.getElementById("main").childNodes);
  } else {
    return isGood;
  }
  return true;
}

async function update() {
  let fresh = null;
  let isGood = false;
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(20000) });
    fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    isGood = response.ok;
  } catch {
    // No answer.
  }
  const shown = document.querySelector("#live time")?.textContent;
  const rest = `. You see what was there at ${shown}. This page asks again every few seconds.`;
  if (fresh?.getElementById("main") == null || fresh.getElementById("live") === null) {
    // The answer may be that of a proxy.
    say(`No answer from this page's server${rest}`);
    return;
  }
  localTimes(fresh);
  if (!apply(fresh, isGood)) {
    // What the viewer has typed and ticked stays.
    say(`${fresh.querySelector("h1").textContent}${rest}`);
    return;
  }
  say("");
  const live = document.getElementById("live");
  live.replaceChildren(...fresh.getElementById("live").childNodes);
  live.dataset.seconds = fresh.getElementById("live").dataset.seconds;
}

function keepUpdating() {
  const live = document.getElementById("live");
  const button = document.getElementById("pause-live");
  let isStopped = false;
  button.hidden = false;
  button.addEventListener("click", () => {
    isStopped = !isStopped;
    button.setAttribute("aria-pressed", String(isStopped));
  });
  const again = async () => {
    if (document.querySelector("[data-no-update]")) {
      return;
    }
    if (!isStopped && !document.hidden) {
      await update();
    }
    setTimeout(again, live.dataset.seconds * 1000);
  };
  setTimeout(again, live.dataset.seconds * 1000);
}

document.documentElement.classList.add("has-script");
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-select-all]")) {
    boxesOf(event.target).forEach((box) => {
      box.checked = event.target.checked;
    });
  }
  showWhetherAllAreChecked();
});
// Enter in a box would leave the list.
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.matches("#list input")) {
    event.preventDefault();
  }
});
// The browser may have brought ticks back.
window.addEventListener("pageshow", showWhetherAllAreChecked);

localTimes(document);
if (!document.querySelector("[data-no-update]")) {
  keepUpdating();
}
