//! Output files of `simulate`: HTML page, image, table.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::binary::run;

/// The picture in the README.
const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/simulated-day.svg");

/// Simulates the built-in scenario with these output files, and returns stdout.
fn simulate(files: &[(&str, &Path)]) -> String {
    let mut arguments = vec!["simulate"];
    for (option, path) in files {
        arguments.extend([*option, path.to_str().expect("a readable path")]);
    }
    let output = run(&arguments, "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn html_report_is_self_contained_and_csv_has_a_row_per_minute() {
    let dir = TempDir::new().expect("a directory");
    let (page, table) = (dir.path().join("day.html"), dir.path().join("day.csv"));
    let output = simulate(&[("--report", &page), ("--csv", &table)]);
    let last = format!("  report  {}", page.display());
    assert_eq!(output.lines().last(), Some(&*last));
    for row in ["  pods    ▂", "  nodes   ▂", "  $/h     ▂"] {
        assert!(output.contains(row), "{row:?} in {output}");
    }
    let page = fs::read_to_string(page).expect("a page");
    // The XML namespace of SVG is the only URL in the page, and no browser fetches it.
    let addresses = page.matches("://").count();
    assert_eq!(addresses, page.matches("http://www.w3.org/2000/svg").count());
    for word in ["<script", " src=", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    for word in ["<svg", "m6g.2xlarge on-demand", "<td>claim planned<td>planned ", "cost    "] {
        assert!(page.contains(word), "{word}");
    }
    let table = fs::read_to_string(table).expect("a table");
    let lines: Vec<&str> = table.lines().collect();
    // One row per minute from 06:00 to 22:00 inclusive, and the header.
    assert_eq!(lines.len(), 16 * 60 + 2);
    let columns = lines[0].split(',').count();
    assert!(lines.iter().all(|line| line.split(',').count() == columns));
    let used = |column: usize| {
        let of = |line: &&str| line.split(',').nth(column).and_then(|own| own.parse().ok());
        lines[1..].iter().filter_map(of).fold(0.0, f64::max)
    };
    assert!(used(3) > 100.0 && used(5) > 1.0, "pods run and nodes have a cost");
    assert!(used(7) > 0.5 && used(7) <= 1.0, "the CPU share is at most one");
}

#[test]
fn readme_picture_equals_the_simulated_day() {
    let dir = TempDir::new().expect("a directory");
    let picture = dir.path().join("day.svg");
    simulate(&[("--report", &picture)]);
    let drawn = fs::read_to_string(picture).expect("a picture");
    assert!(drawn.starts_with("<svg "), "a standalone image");
    let shown = fs::read_to_string(PICTURE).unwrap_or_default();
    assert!(
        drawn == shown,
        "regenerate it: cargo run --release -- simulate --report {}",
        "docs/simulated-day.svg"
    );
}

#[test]
fn unwritable_report_path_is_rejected_before_the_run() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("missing/day.html");
    let path = path.to_str().expect("a readable path");
    for option in ["--report", "--csv"] {
        let output = run(&["simulate", option, path], "");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(output.stdout, b"");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains("write ") && errors.contains("missing"), "{errors}");
        let output = run(&["simulate", "--seeds", "2", option, path], "");
        assert_eq!(output.status.code(), Some(2), "several seeds give no single report");
    }
}

#[test]
fn same_file_for_report_and_csv_is_rejected_and_not_overwritten() {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("day.html");
    fs::write(&file, "earlier").expect("written");
    let path = file.to_str().expect("a readable path");
    let output = run(&["simulate", "--report", path, "--csv", path], "");
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("name the same file"), "{errors}");
    assert_eq!(fs::read_to_string(&file).expect("it is there"), "earlier");
}

#[test]
fn report_is_complete_if_stdout_is_closed_early() {
    let dir = TempDir::new().expect("a directory");
    let file = dir.path().join("day.svg");
    let script = "\"$0\" simulate --report \"$1\" | head -n 1";
    let program = env!("CARGO_BIN_EXE_outrigger");
    let shell = Command::new("sh").args(["-c", script, program]).arg(&file).output();
    assert!(shell.expect("a shell").status.success());
    let drawn = fs::read_to_string(&file).expect("a picture");
    assert!(drawn.trim_end().ends_with("</svg>"));
}
