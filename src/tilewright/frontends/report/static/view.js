// Tables that can be filtered and sorted, and pages that stay up to date without a reload.
// Everything on a page is there without this script.
"use strict";

// -- filter --

function filterTable(table) {
  const controls = document.querySelectorAll(`[data-filter="${table.id}"]`);
  const rows = [...table.tBodies[0].rows];
  let shown = 0;
  for (const row of rows) {
    row.hidden = [...controls].some((control) => {
      const wanted = control.value.toLowerCase();
      const place = control.dataset.column ? row.cells[control.dataset.column] : row;
      const text = place ? place.textContent.toLowerCase() : "";
      if (control.dataset.column) return wanted !== "" && text.trim() !== wanted;
      return !wanted.split(/\s+/).every((word) => text.includes(word));
    });
    shown += row.hidden ? 0 : 1;
  }
  const said = document.querySelector(`[data-shown="${table.id}"]`);
  if (said) said.textContent = shown === rows.length ? `${shown}` : `${shown} of ${rows.length}`;
}

// -- sort --

function key(cell) {
  const text = cell ? cell.dataset.key ?? cell.textContent.trim() : "";
  const number = parseFloat(text.replace(/,/g, ""));
  return { text, number: /^-?[\d.]/.test(text) && !/^\d{4}-\d\d/.test(text) ? number : NaN };
}

function compareKeys(one, other) {
  if (one.text === "" || other.text === "") return 0;
  if (!isNaN(one.number) && !isNaN(other.number)) return one.number - other.number;
  return one.text.localeCompare(other.text, undefined, { numeric: true });
}

function sortTable(table) {
  const head = table.querySelector("th[aria-sort]");
  if (!head) return;
  const column = head.cellIndex, sign = head.getAttribute("aria-sort") === "descending" ? -1 : 1;
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, key: key(row.cells[column]) }));
  // What has no value comes last, whichever way.
  rows.sort((one, other) => (one.key.text === "") - (other.key.text === "") || sign * compareKeys(one.key, other.key));
  table.tBodies[0].append(...rows.map((one) => one.row));
}

function sortBy(head) {
  const before = head.getAttribute("aria-sort");
  for (const other of head.parentNode.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", before === "ascending" ? "descending" : "ascending");
  sortTable(head.closest("table"));
}

function settle() {
  for (const table of document.querySelectorAll("table[id]")) {
    sortTable(table);
    filterTable(table);
  }
}

// -- stay up to date --

let tag = null;

function takeOver(fresh) {
  const focused = document.activeElement && document.activeElement.id;
  const open = new Set([...document.querySelectorAll("details[open][id]")].map((one) => one.id));
  const radios = [...document.querySelectorAll("input[type=radio]:checked")];
  const checked = radios.filter((one) => !one.defaultChecked).map((one) => one.id);
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (now && now.innerHTML !== old.innerHTML) old.replaceChildren(...document.adoptNode(now).childNodes);
  }
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  for (const id of checked) if (document.getElementById(id)) document.getElementById(id).checked = true;
  if (focused && document.activeElement.id !== focused) document.getElementById(focused)?.focus();
  if (fresh.body.dataset.poll) document.body.dataset.poll = fresh.body.dataset.poll;
  else delete document.body.dataset.poll;
  settle();
}

async function look() {
  const news = document.getElementById("news");
  try {
    const answer = await fetch(location.href, { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
    if (answer.ok) {
      tag = answer.headers.get("ETag");
      takeOver(new DOMParser().parseFromString(await answer.text(), "text/html"));
    }
    news.textContent = answer.ok || answer.status === 304 ? "up to date" : "this page is gone";
  } catch {
    news.textContent = "the server does not answer";
  }
  wait();
}

function wait() {
  if (document.body.dataset.poll) setTimeout(document.hidden ? wait : look, Number(document.body.dataset.poll));
}

// -- hands --

document.addEventListener("input", (event) => {
  const table = event.target.dataset.filter && document.getElementById(event.target.dataset.filter);
  if (table) filterTable(table);
});

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button && "sort" in button.dataset) sortBy(button.closest("th"));
});

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input[type=search], input:not([type]), select, textarea");
  if (typing || event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "/") {
    const filter = document.querySelector("input[type=search], input[name=left]");
    if (filter) { filter.focus(); event.preventDefault(); }
  }
  const link = { n: "a[rel=next]", p: "a[rel=prev]" }[event.key];
  if (link) document.querySelector(link)?.click();
});

settle();
wait();
