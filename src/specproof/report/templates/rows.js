"use strict";
{
  const table = document.getElementById("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const form = document.getElementById("filter");

  const valueOf = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    if (text === "") return null;
    const number = Number(text.split(" of ")[0]);
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => (typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1);

  const sort = (header, column) => {
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const keyed = rows.map((row) => [valueOf(row, column), row]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // what is empty comes last
      return down ? compare(b, a) : compare(a, b);
    });
    body.append(...keyed.map(([, row]) => row));
  };

  const filter = () => {
    const shown = new Set([...form.querySelectorAll(":checked")].map((box) => box.value));
    const wanted = form.querySelector("[type=search]").value.toLowerCase();
    let count = 0;
    for (const row of rows) {
      row.hidden = !shown.has(row.dataset.status) || !row.cells[1].textContent.toLowerCase().includes(wanted);
      count += !row.hidden;
    }
    form.querySelector("output").value = `${count} of ${rows.length} rows`;
  };

  for (const [column, header] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    button.addEventListener("click", () => sort(header, column));
    header.replaceChildren(button);
  }
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  filter();
}
