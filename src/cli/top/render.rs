//! Draws the screen at any size. Parts that do not fit are hidden, the least important first.

use jiff::{SignedDuration, Timestamp};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Span;

use super::app::{App, View};
use super::column_layout::{ColumnWidth, Slot, fit_columns};
use super::format;
use super::table::{Cell, CellStyle, Table};
use crate::cli::count_noun;
use crate::host::text::bounded_line;

/// The gap between two parts of a line.
const GAP: usize = 2;

/// From this width on, columns are separated by [`GAP`]; below it, by one space.
const WIDE: u16 = 140;

/// A response is late after this number of refresh intervals, and at the earliest after this
/// duration.
const LATE: i32 = 3;
const LATE_LEAST: SignedDuration = SignedDuration::from_secs(5);

/// The help on keys, the most important first.
const HELP: [&str; 9] = [
    "q quit",
    "tab view",
    "↑↓ scroll",
    "s sort",
    "p pause",
    "←→ page",
    "r reverse",
    "enter open",
    "[ ] cluster",
];

/// The lines of a screen of a given height.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    has_tabs: bool,
    has_titles: bool,
    has_help: bool,
    rows: u16,
    details: u16,
}

impl Layout {
    /// The head line is always shown. A screen with more lines also has one table row, then help,
    /// tabs and titles.
    fn new(height: u16) -> Self {
        let (has_help, has_tabs, has_titles) = (height >= 3, height >= 4, height >= 5);
        let details = match height {
            0..=7 => 0,
            8..=15 => 1,
            16..=29 => 2,
            _ => 5,
        };
        let others = [has_help, has_tabs, has_titles];
        let others = others.into_iter().filter(|shown| *shown).count();
        let others = u16::try_from(others).unwrap_or(0) + details + 1;
        Self { has_tabs, has_titles, has_help, rows: height.saturating_sub(others), details }
    }
}

/// Returns the number of table rows on a screen of this height.
pub(super) fn table_rows(height: u16) -> usize {
    usize::from(Layout::new(height).rows)
}

/// Draws the screen.
pub(super) fn draw_screen(screen: &App, area: Rect, buffer: &mut Buffer, now: Timestamp) {
    let area = area.intersection(buffer.area);
    if area.is_empty() {
        return;
    }
    let layout = Layout::new(area.height);
    let table = screen.current_table(now);
    let index = screen.selected_index(&table);
    let mut writer = LineWriter { buffer, area, has_colour: screen.settings.has_colour, line: 0 };
    writer.write_parts(&head_line(screen, now));
    if layout.has_tabs {
        draw_tabs(&mut writer, screen, &table, index);
    }
    draw_table(&mut writer, screen, &table, index, layout);
    if layout.details > 0 {
        draw_details(&mut writer, screen, &table, index, layout.details);
    }
    if layout.has_help {
        let help = HELP.map(|help| (help.to_owned(), CellStyle::Faint));
        writer.write_parts(&help);
    }
}

/// Writes lines from top to bottom.
struct LineWriter<'b> {
    buffer: &'b mut Buffer,
    area: Rect,
    has_colour: bool,
    line: u16,
}

impl LineWriter<'_> {
    fn style(&self, cell_style: CellStyle) -> Style {
        let style = Style::new();
        match cell_style {
            CellStyle::Plain => style,
            CellStyle::Bad if !self.has_colour => style.add_modifier(Modifier::BOLD),
            _ if !self.has_colour => style,
            CellStyle::Good => style.fg(Color::Green),
            CellStyle::Warns => style.fg(Color::Yellow),
            CellStyle::Bad => style.fg(Color::Red).add_modifier(Modifier::BOLD),
            CellStyle::Faint => style.fg(Color::DarkGray),
        }
    }

    fn width(&self) -> usize {
        usize::from(self.area.width)
    }

    /// Writes a string into the current line. Cuts it with `…` if it does not fit.
    fn write_text(&mut self, at: usize, text: &str, room: usize, style: Style) {
        let room = room.min(self.width().saturating_sub(at));
        if room == 0 || self.line >= self.area.height {
            return;
        }
        let Ok(at) = u16::try_from(at) else { return };
        let (x, y) = (self.area.x + at, self.area.y + self.line);
        if text_width(text) <= room {
            self.buffer.set_stringn(x, y, text, room, style);
            return;
        }
        let (end, _) = self.buffer.set_stringn(x, y, text, room - 1, style);
        self.buffer.set_stringn(end, y, "…", 1, style);
    }

    /// Writes the parts that fit, and advances to the next line. Cuts the first part if needed.
    fn write_parts(&mut self, parts: &[(String, CellStyle)]) {
        let mut at = 0;
        for (index, (text, cell_style)) in parts.iter().enumerate() {
            let text_width = text_width(text);
            if index > 0 && at + text_width > self.width() {
                break;
            }
            self.write_text(at, text, usize::MAX, self.style(*cell_style));
            at += text_width + GAP;
        }
        self.line += 1;
    }
}

/// Returns the parts of the head line, problems first.
fn head_line(screen: &App, now: Timestamp) -> Vec<(String, CellStyle)> {
    let mut parts = Vec::new();
    let late = screen.settings.interval.checked_mul(LATE);
    let late = late.unwrap_or(LATE_LEAST).max(LATE_LEAST);
    let silence = screen.data.silent_for(late, now);
    if let Some(silence) = silence.filter(|_| !screen.is_paused) {
        let text = format!("no response for {}", format::format_duration(silence));
        parts.push((text, CellStyle::Bad));
    }
    if screen.is_paused {
        parts.push(("paused".to_owned(), CellStyle::Warns));
    }
    match (screen.view, screen.selected_cluster()) {
        (View::Fleet, _) | (_, None) => head_of_fleet(screen, &mut parts),
        (_, Some(cluster)) => head_of_cluster(screen, &cluster, &mut parts),
    }
    parts
}

fn head_of_fleet(screen: &App, parts: &mut Vec<(String, CellStyle)>) {
    let all = screen.data.clusters(screen.settings.only.as_deref());
    let statuses: Vec<_> = all.iter().filter_map(|cluster| cluster.status.as_ref()).collect();
    let unwell = all.iter().filter(|cluster| !cluster.is_well).count();
    let nodes: usize = statuses.iter().map(|status| status.nodes).sum();
    let (waiting, unplaced) = statuses.iter().fold((0, 0), |(waiting, unplaced), status| {
        (waiting + status.waiting_pods, unplaced + status.unplaced_pods)
    });
    // An empty `sum()` would be -0.0.
    let cost = statuses.iter().fold(0.0, |sum, it| sum + it.cost_per_hour);
    let unwell_style = if unwell > 0 { CellStyle::Bad } else { CellStyle::Good };
    parts.extend([
        (count_noun(all.len(), "cluster"), CellStyle::Plain),
        (format!("{unwell} unhealthy"), unwell_style),
        (count_noun(nodes, "node"), CellStyle::Plain),
        (format!("${cost:.2}/h"), CellStyle::Plain),
        (pending_text(waiting), CellStyle::Plain),
    ]);
    if unplaced > 0 {
        parts.push((format!("{unplaced} unschedulable"), CellStyle::Bad));
    }
    let version = screen.data.version();
    parts.push((format!("outrigger {}", bounded_line(version)), CellStyle::Faint));
}

fn pending_text(pods: usize) -> String {
    format!("{} pending", count_noun(pods, "pod"))
}

fn head_of_cluster(screen: &App, cluster: &str, parts: &mut Vec<(String, CellStyle)>) {
    parts.push((bounded_line(cluster), CellStyle::Plain));
    let Some(inventory) = screen.data.inventory_of(cluster) else {
        return;
    };
    let Some(holds) = &inventory.holds else {
        parts.push((bounded_line(&inventory.standing), CellStyle::Warns));
        return;
    };
    let nodes = holds.nodes.len() + holds.more_nodes;
    let waiting = holds.pods.len() + holds.more_pods;
    let (hour, month) = (holds.usd_per_h, holds.usd_per_h * 730.0);
    parts.extend([
        (count_noun(nodes, "node"), CellStyle::Plain),
        (format!("${hour:.2}/h"), CellStyle::Plain),
        (pending_text(waiting), CellStyle::Plain),
    ]);
    for (name, usage) in screen.settings.resources.iter().zip(&holds.amounts) {
        let share = format::used_share(*usage).unwrap_or(0.0) * 100.0;
        let taken = format::format_quantity(name, usage.taken);
        let capacity = format::format_quantity(name, usage.there);
        let title = format::column_title(name).to_lowercase();
        parts.push((format!("{title} {taken}/{capacity} {share:.0}%"), CellStyle::Plain));
    }
    parts.push((format!("{} pods bound", holds.bound_pods), CellStyle::Plain));
    parts.push((format!("${month:.0}/month"), CellStyle::Plain));
    if inventory.standing != "ready" {
        parts.push((bounded_line(&inventory.standing), CellStyle::Warns));
    }
}

/// Draws the names of the views and the position in the table. If not all names fit, draws only the
/// current one.
fn draw_tabs(writer: &mut LineWriter<'_>, screen: &App, table: &Table, index: usize) {
    let at = match (table.rows.len(), table.more) {
        (0, _) => String::new(),
        (rows, 0) => format!("{}/{rows}", index + 1),
        (rows, more) => format!("{}/{rows}, {more} not shown", index + 1),
    };
    let all: usize = View::ALL.iter().map(|view| text_width(&tab_title(*view))).sum();
    let has_room = all + GAP + text_width(&at) <= writer.width();
    let (plain, chosen) = (Style::new(), Style::new().add_modifier(Modifier::REVERSED));
    let mut column = 0;
    for view in View::ALL {
        let is_chosen = view == screen.view;
        if !has_room && !is_chosen {
            continue;
        }
        let name = tab_title(view);
        let style = if is_chosen { chosen } else { plain };
        writer.write_text(column, &name, usize::MAX, style);
        column += text_width(&name);
    }
    let left = writer.width().saturating_sub(text_width(&at));
    if left > column {
        writer.write_text(left, &at, usize::MAX, plain);
    }
    writer.line += 1;
}

/// Formats the number and the name of a view.
fn tab_title(view: View) -> String {
    format!(" {} {} ", view.index() + 1, view.as_str())
}

/// Draws the titles and the rows around the selected one.
fn draw_table(
    writer: &mut LineWriter<'_>,
    screen: &App,
    table: &Table,
    selected: usize,
    layout: Layout,
) {
    let gap = if writer.area.width < WIDE { 1 } else { GAP };
    let columns = table.columns.iter().enumerate();
    let (sorted, _) = screen.sort_order(table);
    let claims = columns.map(|(index, column)| ColumnWidth {
        least: column.least,
        fair: column.fair,
        // The title of the sort column has an arrow.
        wanted: wanted_width(table, index) + usize::from(index == sorted),
        leaves: column.leaves,
    });
    let claims: Vec<ColumnWidth> = claims.collect();
    let slots = fit_columns(&claims, gap, writer.width());
    if layout.has_titles {
        draw_titles(writer, screen, table, &slots);
    }
    let end = writer.line + layout.rows;
    if table.rows.is_empty() {
        let room = writer.width();
        writer.write_text(0, &bounded_line(&table.empty), room, writer.style(CellStyle::Faint));
    }
    let rows = usize::from(layout.rows);
    let first = selected.saturating_sub(rows / 2);
    let first = first.min(table.rows.len().saturating_sub(rows));
    for (index, row) in table.rows.iter().enumerate().skip(first).take(rows) {
        for slot in &slots {
            let is_right = table.columns[slot.column].is_right;
            if let Some(cell) = row.cells.get(slot.column) {
                self::draw_cell(writer, cell, *slot, is_right);
            }
        }
        if index == selected {
            let (x, y) = (writer.area.x, writer.area.y + writer.line);
            let line = Rect::new(x, y, writer.area.width, 1);
            let chosen = Style::new().add_modifier(Modifier::REVERSED);
            writer.buffer.set_style(line, chosen);
        }
        writer.line += 1;
    }
    writer.line = end;
}

fn draw_titles(writer: &mut LineWriter<'_>, screen: &App, table: &Table, slots: &[Slot]) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let (sorted, is_descending) = screen.sort_order(table);
    for slot in slots {
        let column = &table.columns[slot.column];
        let sign = match (slot.column == sorted, is_descending) {
            (true, true) => "▼",
            (true, false) => "▲",
            (false, _) => "",
        };
        let title = format!("{}{sign}", column.title);
        let free = slot.width.saturating_sub(text_width(&title));
        let at = if column.is_right { free } else { 0 };
        writer.write_text(slot.at + at, &title, slot.width - at, bold);
    }
    writer.line += 1;
}

fn draw_cell(writer: &mut LineWriter<'_>, cell: &Cell, slot: Slot, is_right: bool) {
    let style = writer.style(cell.style);
    let bar = slot.width.saturating_sub(5);
    if let Some(share) = cell.share.filter(|_| bar >= 4) {
        let text = format!("{} {:>4}", usage_bar(share, bar), cell.text);
        writer.write_text(slot.at, &text, slot.width, style);
        return;
    }
    let free = slot.width.saturating_sub(text_width(&cell.text));
    let at = if is_right { free } else { 0 };
    writer.write_text(slot.at + at, &cell.text, slot.width - at, style);
}

/// Formats a bar of this number of steps.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the result is between 0 and the number of steps"
)]
fn usage_bar(share: f64, steps: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * steps as f64).round() as usize;
    let full = full.min(steps);
    "█".repeat(full) + &"░".repeat(steps - full)
}

/// Draws the error of the last request or reload, else the details of the selected row.
fn draw_details(
    writer: &mut LineWriter<'_>,
    screen: &App,
    table: &Table,
    index: usize,
    lines: u16,
) {
    let faults = [screen.data.fault.as_deref(), screen.data.reload_fault()];
    let (text, cell_style) = match (faults, table.rows.get(index)) {
        ([Some(why), _], _) => (why.to_owned(), CellStyle::Bad),
        ([None, Some(why)], _) if screen.view == View::Fleet => {
            (format!("configuration not reloaded: {why}"), CellStyle::Bad)
        }
        (_, row) => {
            let detail = row.map_or("", |row| row.detail.as_str());
            (detail.to_owned(), CellStyle::Plain)
        }
    };
    let style = writer.style(cell_style);
    let mut remaining = bounded_line(&text);
    for line in 0..lines {
        let room = writer.width();
        let (current, after) = match line + 1 == lines {
            true => (remaining.clone(), String::new()),
            false => split_line(&remaining, room),
        };
        writer.write_text(0, &current, room, style);
        writer.line += 1;
        remaining = after;
    }
}

/// The width of a bar: ten steps, a space and a percentage of four characters.
const BAR: usize = 15;

/// Returns the display width of a string.
fn text_width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns the display width of a cell.
fn cell_width(cell: &Cell) -> usize {
    match cell.share {
        Some(_) => BAR,
        None => text_width(&cell.text),
    }
}

/// Returns the display width of the widest cell of a column, including the title.
fn wanted_width(table: &Table, column: usize) -> usize {
    let cells = table.rows.iter().filter_map(|row| row.cells.get(column));
    let title = table.columns.get(column).map_or(0, |column| text_width(&column.title));
    cells.map(cell_width).max().unwrap_or(0).max(title)
}

/// Splits a string at the last space that fits in the line, and returns the line and the rest.
fn split_line(text: &str, room: usize) -> (String, String) {
    let mut end = 0;
    let mut space = None;
    for (at, letter) in text.char_indices() {
        let next = at + letter.len_utf8();
        if text_width(&text[..next]) > room {
            break;
        }
        if letter == ' ' {
            space = Some(at);
        }
        end = next;
    }
    let cut = if end == text.len() { end } else { space.unwrap_or(end) };
    (text[..cut].to_owned(), text[cut..].trim_start().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{split_line, table_rows, usage_bar};

    #[test]
    fn bars_and_lines_fit_the_given_width() {
        assert_eq!(usage_bar(0.5, 4), "██░░");
        assert_eq!(usage_bar(7.0, 4), "████");
        assert_eq!(usage_bar(f64::NAN, 2), "░░");
        let check = |text, room, one: &str, other: &str| {
            assert_eq!(split_line(text, room), (one.to_owned(), other.to_owned()));
        };
        check("one two", 9, "one two", "");
        check("one two", 5, "one", "two");
        check("onetwo", 3, "one", "two");
        check("日本", 3, "日", "本");
        check("日本", 1, "", "日本");
        check("", 0, "", "");
    }

    #[test]
    fn table_shows_a_row_from_two_screen_lines_on() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(table_rows), [0, 0, 1, 1, 1, 1]);
        assert_eq!([8, 24, 30].map(table_rows), [3, 18, 21]);
    }
}
