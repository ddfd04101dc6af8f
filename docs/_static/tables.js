// Where a table has no room, each row becomes a block: the first cell is its title, and the others stand
// below each other, behind the names of their columns. Without this script, the table is scrolled.

function label(table) {
  const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent.trim());
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.children].forEach((cell, index) => {
      if (index && names[index]) cell.dataset.column = names[index];
    });
  }
}

function fit() {
  for (const table of document.querySelectorAll("article table.docutils")) {
    table.classList.remove("stacked");
    const room = table.parentElement;
    if (room.scrollWidth > room.clientWidth + 1) table.classList.add("stacked");
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("article table.docutils").forEach(label);
  fit();
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) fit();
    width = window.innerWidth;
  });
});
