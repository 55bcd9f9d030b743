// Tables that can be filtered and sorted, and pages that stay up to date without a reload.
// Everything on a page is there without this script.
"use strict";

const filter = document.getElementById("filter");
const tables = () => [...document.querySelectorAll("main table")].filter((table) => table.tHead);
let sorting = null; // the number of a table, a column and a sign

function showRows() {
  const words = filter.value.toLowerCase().split(/\s+/);
  for (const table of tables())
    for (const row of table.tBodies[0].rows)
      row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
}

function numberIn(text) {
  const digits = text.replace(/[,$]/g, "");
  return /^-?[\d.]/.test(digits) && !/^\d{4}-\d\d/.test(digits) ? parseFloat(digits) : NaN;
}

function compareTexts(one, other) {
  const difference = numberIn(one) - numberIn(other);
  return isNaN(difference) ? one.localeCompare(other, undefined, { numeric: true }) : difference;
}

function sortRows() {
  if (!sorting) return;
  const { number, column, sign } = sorting;
  const table = tables()[number];
  if (!table) return;
  for (const head of table.tHead.rows[0].cells) head.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[column].setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  const text = (row) => row.cells[column]?.textContent.trim() ?? "";
  // What has no value comes last, whichever way.
  const order = (one, other) => (text(one) === "") - (text(other) === "") || sign * compareTexts(text(one), text(other));
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
}

let tag = null;

function takeOver(fresh) {
  const open = new Set([...document.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (now && now.innerHTML !== old.innerHTML) old.replaceChildren(...document.adoptNode(now).childNodes);
  }
  for (const one of document.querySelectorAll("summary")) if (open.has(one.textContent)) one.parentNode.open = true;
  if (fresh.body.dataset.poll) document.body.dataset.poll = fresh.body.dataset.poll;
  else delete document.body.dataset.poll;
  sortRows();
  showRows();
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

filter.addEventListener("input", showRows);

document.addEventListener("click", (event) => {
  const head = event.target.closest("main thead th");
  if (!head) return;
  const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  sorting = { number: tables().indexOf(head.closest("table")), column: head.cellIndex, sign };
  sortRows();
});

showRows();
wait();
