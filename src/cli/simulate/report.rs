//! The reports of a run: an HTML page with charts and decisions, a CSV table, and sparklines for
//! the terminal. The only input is samples and timeline entries.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::chart::{Day, count_to_f64};
use crate::model::id::TypeName;
use crate::model::instance::CapacityType;
use crate::sim::samples::WorldSample;
use crate::sim::summary::Summary;
use crate::sim::timeline::{TimelineEntry, TimelineFact};
use crate::text::sanitize::replace_unsafe;

/// Maximum number of rows in the decision table: more rows make a page slow.
const ROWS_MAX: usize = 5000;

/// The width of the sparklines in characters.
const SPARKS: usize = 48;

/// The style of the page: one column, light or dark as the reader's system prefers, printable.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--paper:#fff;--rule:#ddd}
@media screen and (prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#15181b;--rule:#3a3f44}}
body{margin:2rem auto;max-width:1000px;padding:0 1rem;font:15px/1.5 sans-serif;color:var(--ink);\
background:var(--paper)}
svg{max-width:100%;height:auto}
pre{white-space:pre-wrap}
table{border-collapse:collapse;width:100%}
th,td{padding:.2rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}
td:first-child{white-space:nowrap;font-variant-numeric:tabular-nums}
@media print{body{margin:0;max-width:none}tr{break-inside:avoid}}
";

/// Formats a self-contained page: no other files, no network access, no scripts.
pub(super) fn render_page(day: &Day<'_>, summary: &Summary) -> anyhow::Result<String> {
    let title = escape_html(&format!("{}, seed {}", summary.title, summary.seed));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n{}\n<h2>Summary</h2>\n<pre>{}</pre>\n\
         <h2>Decisions</h2>\n",
        day.render_svg()?,
        escape_html(&summary.to_string()),
    );
    write_decision_table(&mut page, day.lines);
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

/// Writes the table of decisions and their causes, in order. Omits the consequences: nodes that
/// register and become ready, and pods that are bound.
fn write_decision_table(page: &mut String, lines: &[TimelineEntry]) {
    let shown: Vec<&TimelineEntry> = lines
        .iter()
        .filter(|line| {
            !matches!(
                line.fact,
                TimelineFact::Registered { .. }
                    | TimelineFact::Ready { .. }
                    | TimelineFact::Bound { .. }
            )
        })
        .collect();
    page.push_str("<table>\n<thead><tr><th>time<th>kind<th>what</thead>\n<tbody>\n");
    for line in shown.iter().take(ROWS_MAX) {
        let at = line.at.strftime("%m-%d %H:%M:%S");
        let kind = line.fact.kind().replace('_', " ");
        let row = format!("<tr><td>{at}<td>{kind}<td>{}\n", escape_html(&line.fact.to_string()));
        page.push_str(&row);
    }
    page.push_str("</tbody>\n</table>\n");
    if let Some(more) = shown.len().checked_sub(ROWS_MAX).filter(|more| *more > 0) {
        let note = format!("<p>{more} more rows are omitted; --json prints all of them.</p>\n");
        page.push_str(&note);
    }
}

/// Escapes a string for HTML and replaces control characters.
fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for line in text.lines() {
        for char in replace_unsafe(line) {
            match char {
                '&' => escaped.push_str("&amp;"),
                '<' => escaped.push_str("&lt;"),
                '>' => escaped.push_str("&gt;"),
                '"' => escaped.push_str("&quot;"),
                other => escaped.push(other),
            }
        }
        escaped.push('\n');
    }
    escaped.trim_end().to_owned()
}

/// Formats comma-separated values: one line per minute, one column per instance type that ran.
pub(super) fn render_csv(samples: &[WorldSample]) -> String {
    let kinds = samples.iter().flat_map(|sample| sample.instances.keys());
    let kinds: BTreeSet<&(CapacityType, TypeName)> = kinds.collect();
    let mut text = String::from(
        "time,nodes,instances,pods_running,pods_pending,usd_per_h,fixed_fleet_usd_per_h,\
         cpu_requested_share,memory_requested_share",
    );
    for (capacity_type, name) in &kinds {
        text.push(',');
        text.push_str(&csv_cell(&format!("{}/{name}", capacity_type.as_str())));
    }
    text.push('\n');
    for sample in samples {
        let row = format!(
            "{},{},{},{},{},{:.4},{:.4},{:.4},{:.4}",
            sample.at,
            sample.nodes,
            sample.live_instances(),
            sample.running,
            sample.pending,
            sample.usd_per_h,
            sample.fixed_usd_per_h,
            sample.cpu_share,
            sample.memory_share,
        );
        text.push_str(&row);
        for kind in &kinds {
            let count = sample.instances.get(*kind).copied().unwrap_or(0);
            // Writing to a String cannot fail.
            write!(text, ",{count}").unwrap_or_default();
        }
        text.push('\n');
    }
    text
}

/// Formats an untrusted string as one cell (RFC 4180).
fn csv_cell(text: &str) -> String {
    let text: String = replace_unsafe(text).collect();
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// Reads the value of one sparkline from a sample.
type SampleValue = fn(&WorldSample) -> f64;

/// Formats the run as three sparklines: pods, nodes and cost, each with its minimum and maximum.
pub(super) fn render_sparklines(samples: &[WorldSample]) -> String {
    let rows: [(&str, usize, SampleValue); 3] = [
        ("pods", 0, |sample| count_to_f64(sample.running + sample.pending)),
        ("nodes", 0, |sample| count_to_f64(sample.live_instances())),
        ("$/h", 2, |sample| sample.usd_per_h),
    ];
    let mut text = String::new();
    for (name, digits, value_of) in rows.into_iter().filter(|_| !samples.is_empty()) {
        let values: Vec<f64> = samples.iter().map(value_of).collect();
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(0.0, f64::max);
        let sparks = sparkline_blocks(&values, max);
        // Writing to a String cannot fail.
        writeln!(text, "  {name:<7} {sparks}  {min:.digits$} to {max:.digits$}")
            .unwrap_or_default();
    }
    text
}

/// Formats values as blocks of eight heights. A block shows the maximum of its interval.
fn sparkline_blocks(values: &[f64], max: f64) -> String {
    const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let spans = SPARKS.min(values.len());
    (0..spans)
        .map(|span| {
            let (from, until) = (span * values.len() / spans, (span + 1) * values.len() / spans);
            let value = values[from..until].iter().copied().fold(0.0, f64::max);
            let share = if max > 0.0 { value / max } else { 0.0 };
            let block = (1..BLOCKS.len()).take_while(|block| {
                let block = u32::try_from(*block).unwrap_or(0);
                share * 8.0 > f64::from(block)
            });
            BLOCKS[block.count()]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::{
        Day, csv_cell, escape_html, render_csv, render_page, render_sparklines, sparkline_blocks,
    };
    use crate::model::instance::CapacityType;
    use crate::sim::samples::WorldSample;
    use crate::sim::summary::Summary;
    use crate::sim::timeline::{TimelineEntry, TimelineFact};

    fn sample(minute: i64, pods: usize) -> WorldSample {
        let at = Timestamp::from_second(minute * 60).expect("a time");
        let mut sample =
            WorldSample { at, nodes: 1, running: pods, usd_per_h: 0.5, ..WorldSample::default() };
        let key = (CapacityType::Spot, "m6i.large".into());
        sample.instances.insert(key, 1);
        sample
    }

    #[test]
    fn sparkline_heights_are_proportional_to_values() {
        assert_eq!(sparkline_blocks(&[0.0, 1.0, 2.0, 4.0, 8.0], 8.0), "▁▁▂▄█");
        assert_eq!(sparkline_blocks(&[0.0, 0.0], 0.0), "▁▁");
        let long: Vec<f64> = (0..480).map(f64::from).collect();
        assert_eq!(sparkline_blocks(&long, 479.0).chars().count(), 48);
    }

    #[test]
    fn sparklines_show_pods_nodes_and_cost() {
        let samples = [sample(0, 0), sample(1, 8)];
        assert_eq!(
            render_sparklines(&samples),
            "  pods    ▁█  0 to 8\n  nodes   ██  1 to 1\n  $/h     ██  0.50 to 0.50\n"
        );
        assert_eq!(render_sparklines(&[]), "");
    }

    #[test]
    fn csv_has_one_line_per_sample() {
        let text = render_csv(&[sample(0, 3), sample(1, 4)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with(",memory_requested_share,spot/m6i.large"));
        assert_eq!(lines[1], "1970-01-01T00:00:00Z,1,1,3,0,0.5000,0.0000,0.0000,0.0000,1");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn foreign_text_is_quoted_in_csv_cells() {
        assert_eq!(csv_cell("spot/m6i.large"), "spot/m6i.large");
        assert_eq!(csv_cell("spot/a,b\"c\nd"), "\"spot/a,b\"\"c d\"");
    }

    #[test]
    fn foreign_text_is_escaped_in_html() {
        assert_eq!(escape_html("<b>&\"\u{1b}[31m"), "&lt;b&gt;&amp;&quot; [31m");
        let lines = [TimelineEntry {
            at: Timestamp::UNIX_EPOCH,
            fact: TimelineFact::Fault("<script>alert(1)</script>".to_owned()),
        }];
        let samples = [sample(0, 1), sample(1, 2)];
        let day = Day { start: Timestamp::UNIX_EPOCH, samples: &samples, lines: &lines };
        let summary = Summary { title: "<script>".to_owned(), ..Summary::default() };
        let page = render_page(&day, &summary).expect("a page");
        assert!(!page.contains("<script"), "{page}");
        assert!(!page.contains("http://www.w3.org/1999/xlink"), "{page}");
        assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
    }
}
