//! Checks that the reference in docs/CONFIGURATION.md equals the schema, and that the defaults of
//! the schema equal those of the model. It must not depend on the use of the schema.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use outrigger::config::config_diff::ConfigValues;
use outrigger::config::diagnostic::{ProblemCode, render_all};
use outrigger::config::function_names;
use outrigger::config::schema::blocks::root_block;
use outrigger::config::schema::{ArgumentType, BlockType, Occurrence};

use super::load_text;

/// The text after this line is generated from the schema.
const BEGIN: &str =
    "<!-- Generated from the schema from here on: UPDATE_REFERENCE=1 cargo test. -->\n";

fn section(out: &mut String, block: &'static BlockType, path: &str, level: usize) {
    let label = block.label.map_or(String::new(), |label| format!(" \"{label}\""));
    let _ = writeln!(out, "\n{} `{path}{}{label}`\n", "#".repeat(level), block.name);
    let often = match (block.repeat, block.label) {
        (Occurrence::Once, _) => "At most once.",
        (Occurrence::Many, Some(_)) => "Any number, also with the same label.",
        (Occurrence::Many, None) => "Any number.",
        (Occurrence::PerLabel, _) => "Once per label.",
    };
    let _ = writeln!(out, "{} {often}", block.about);
    if !block.arguments.is_empty() {
        out.push_str("\n| argument | type | default | description |\n|---|---|---|---|\n");
    }
    for argument in block.arguments {
        let default = match (argument.required, argument.default) {
            (true, _) => "**required**".to_owned(),
            (false, "") => String::new(),
            (false, default) => format!("`{default}`"),
        };
        let (name, kind) = (argument.name, argument.kind.describe());
        let _ = writeln!(out, "| `{name}` | {kind} | {default} | {} |", argument.about);
    }
    let path = format!("{path}{} › ", block.name);
    for inner in block.blocks {
        section(out, inner, &path, level + 1);
    }
}

fn reference() -> String {
    let mut out = String::from(BEGIN);
    out.push_str("\n## Functions\n\nNames and behavior are those of Terraform. ");
    out.push_str("`env` and `secret` are additional functions.\n\n");
    let names: Vec<String> = function_names().iter().map(|name| format!("`{name}`")).collect();
    let mut column = 0;
    for (index, name) in names.iter().enumerate() {
        let word = if index + 1 < names.len() { format!("{name},") } else { format!("{name}.") };
        let (gap, width) = if column == 0 { ("", 0) } else { (" ", 1) };
        if column + width + word.len() > 100 {
            let _ = write!(out, "\n{word}");
            column = word.len();
        } else {
            let _ = write!(out, "{gap}{word}");
            column += width + word.len();
        }
    }
    out.push_str("\n\n## Blocks\n");
    for block in root_block().blocks {
        section(&mut out, block, "", 3);
    }
    out.push_str("\n## Diagnostic codes\n\n| code | meaning |\n|---|---|\n");
    for code in ProblemCode::ALL {
        let _ = writeln!(out, "| `{}` | {} |", code.as_str(), code.summary());
    }
    out
}

#[test]
fn configuration_reference_equals_the_schema() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/CONFIGURATION.md");
    let text = fs::read_to_string(&path).expect("the reference");
    let at = text.find(BEGIN).expect("the mark in the reference");
    let expect = format!("{}{}", &text[..at], reference());
    if option_env!("UPDATE_REFERENCE").is_some() {
        fs::write(&path, expect).expect("the reference can be written");
        return;
    }
    assert!(text == expect, "docs/CONFIGURATION.md does not equal the schema");
}

/// Returns HCL with all arguments of a block that have a default.
fn defaults(block: &BlockType, leave: &[&str]) -> String {
    let mut out = String::new();
    for argument in block.arguments {
        if !argument.default.is_empty() && !leave.contains(&argument.name) {
            let _ = writeln!(out, "  {} = {}", argument.name, argument.default);
        }
    }
    for inner in block.blocks {
        let once = inner.repeat == Occurrence::Once && inner.label.is_none();
        let once = once && !inner.arguments.iter().any(|a| a.required);
        if once && !leave.contains(&inner.name) {
            let _ = writeln!(out, "  {} {{\n{}  }}", inner.name, defaults(inner, leave));
        }
    }
    out
}

#[test]
fn explicit_defaults_change_nothing() {
    let block = |name: &str| root_block().block(name).expect("a block of the schema");
    // These blocks have an effect even if they are empty.
    let leave = ["eks", "simulated"];
    let leave_of_class = ["connection_tracking", "placement_group"];
    let plain = "cluster \"demo\" {\n  simulated {}\n}\nnode_class \"one\" {}\n\
                 pool \"one\" {\n  node_class = node_class.one\n}\n";
    let simulated = defaults(block("cluster").block("simulated").expect("a block"), &[]);
    let written = format!(
        "outrigger {{\n{}}}\ncluster \"demo\" {{\n  simulated {{\n{simulated}  }}\n{}}}\n\
         node_class \"one\" {{\n{}}}\npool \"one\" {{\n  node_class = node_class.one\n{}}}\n\
         scheduler {{\n{}}}\nfleet {{\n{}}}\ntelemetry {{\n{}}}\n",
        defaults(block("outrigger"), &[]),
        defaults(block("cluster"), &leave),
        defaults(block("node_class"), &leave_of_class),
        defaults(block("pool"), &[]),
        defaults(block("scheduler"), &[]),
        defaults(block("fleet"), &[]),
        defaults(block("telemetry"), &[]),
    );
    let lowered = |text: &str| {
        let config = load_text(text);
        let config = config.unwrap_or_else(|problems| panic!("{text}\n{}", render_all(&problems)));
        // Whether an argument is set is not compared.
        outrigger::config::Config { written: ConfigValues::default(), ..config }
    };
    assert_eq!(lowered(&written), lowered(plain), "{written}");
}

#[test]
fn every_default_is_valid_for_its_argument() {
    fn check(block: &BlockType) {
        for argument in block.arguments {
            assert!(!argument.about.is_empty(), "{} {}", block.name, argument.name);
            assert!(argument.about.ends_with('.'), "{} {}", block.name, argument.name);
            if let (ArgumentType::OneOf(names), false) =
                (argument.kind, argument.default.is_empty())
            {
                let default = argument.default.trim_matches('"');
                assert!(names.contains(&default), "{} {}", block.name, argument.name);
            }
        }
        block.blocks.iter().for_each(|inner| check(inner));
    }
    check(root_block());
}
