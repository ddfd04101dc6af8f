// Brings the parts of the page that are marked with data-live up to date, every few seconds, and shows times
// in the viewer's zone. Nothing else needs a script.
"use strict";

const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
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
  return new Set(Array.from(part.querySelectorAll("input:checked"), (box) => box.value));
}

// What tells an element that can have the focus from the others of its part.
function keyOf(element) {
  return [element.tagName, element.getAttribute("href"), element.getAttribute("name"), element.getAttribute("value")].join(" ");
}

function replace(part, fresh) {
  if (part.innerHTML === fresh.innerHTML || isInUse(part)) {
    return;
  }
  const checked = checkedIn(part);
  const opened = Array.from(part.querySelectorAll("details"), (each) => each.open);
  const focused = part.contains(document.activeElement) ? keyOf(document.activeElement) : null;
  part.replaceChildren(...fresh.childNodes);
  for (const box of part.querySelectorAll("input[type=checkbox]")) {
    box.checked = checked.has(box.value);
  }
  part.querySelectorAll("details").forEach((each, index) => {
    each.open = opened[index] ?? each.open;
  });
  if (focused !== null) {
    const again = Array.from(part.querySelectorAll("a, button, input, summary")).find((each) => keyOf(each) === focused);
    again?.focus({ preventScroll: true });
  }
}

async function update() {
  let fresh = null;
  try {
    const response = await fetch(location.href, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(10000) });
    fresh = new DOMParser().parseFromString(await response.text(), "text/html");
  } catch {
    // No answer.
  }
  if (fresh?.getElementById("main") == null || fresh.getElementById("live") === null) {
    // The answer may be that of a proxy.
    document.body.classList.add("away");
    return;
  }
  document.body.classList.remove("away");
  localTimes(fresh);
  const parts = document.querySelectorAll("[data-live]");
  const found = Array.from(parts, (part) => [part, fresh.getElementById(part.id)]);
  if (parts.length === 0 || found.some(([, part]) => part === null)) {
    // It is another page now: Redis went away, or came back.
    document.getElementById("main").replaceChildren(...fresh.getElementById("main").childNodes);
  } else {
    found.forEach(([part, its]) => replace(part, its));
  }
  document.getElementById("live").replaceChildren(...fresh.getElementById("live").childNodes);
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
    if (!isStopped && !document.hidden) {
      await update();
    }
    setTimeout(again, live.dataset.seconds * 1000);
  };
  setTimeout(again, live.dataset.seconds * 1000);
}

localTimes(document);
if (!document.querySelector("[data-no-update]")) {
  keepUpdating();
}
