//! Sensitive values appear in no message, at any position and for any error.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use outrigger::config::diagnostic::{Diagnostic, render_all, report_json};
use outrigger::config::schema::blocks::root_block;
use outrigger::config::schema::{ArgumentType, BlockType};
use outrigger::config::{Inputs, SourceFile, VariableInput, load};

use super::properties::corpus;

/// The value that no message may contain.
const TOKEN: &str = "47114711";

/// The token in forms that are invalid for different reasons.
const FORMS: [&str; 6] = [
    "Qz47114711",
    "/qz/47114711",
    "qz.example/x=47114711",
    "0 8 * * 47114711",
    "47114711",
    "karpenter.sh/47114711",
];

/// The problems of a configuration that uses `var.tok`, which is sensitive.
fn problems(text: &str, form: &str) -> Vec<Diagnostic> {
    let declared = "\nvariable \"tok\" {\n  type = string\n  sensitive = true\n}\n";
    let files = [SourceFile::new("main.hcl", format!("{text}{declared}"))];
    let inputs = Inputs {
        vars: vec![VariableInput { name: "tok".to_owned(), value: form.to_owned() }],
        secrets: BTreeMap::from([("tok".to_owned(), form.to_owned())]),
        ..Inputs::default()
    };
    load(&files, &inputs).map_or_else(|problems| problems, |config| config.warnings)
}

/// Returns the rendered problems if they contain the token. Each place uses another form.
fn leaked(text: &str, place: usize) -> Option<String> {
    let problems = problems(text, FORMS[place % FORMS.len()]);
    let all = [render_all(&problems), report_json(&problems).to_string()];
    all.into_iter().find(|all| all.contains(TOKEN))
}

/// Returns nested blocks with the argument under test and all required arguments.
fn nested_blocks(path: &[&BlockType], argument: &str, value: &str) -> String {
    let mut text = String::new();
    for block in path {
        let label = block.label.map_or("", |_| " \"one\"");
        let _ = writeln!(text, "{}{label} {{", block.name);
    }
    let _ = writeln!(text, "{argument} = {value}");
    let block = path.last().expect("a block");
    for other in block.arguments.iter().filter(|other| other.name != argument) {
        let value = match other.kind {
            _ if !other.required => continue,
            ArgumentType::Whole(least, _) | ArgumentType::Number(least, _) => least.to_string(),
            ArgumentType::Duration { .. } => "\"1h\"".to_owned(),
            ArgumentType::Reference(kind) => format!("{kind}.one"),
            ArgumentType::Quantities => "{ cpu = 1 }".to_owned(),
            _ => "\"x\"".to_owned(),
        };
        let _ = writeln!(text, "{} = {value}", other.name);
    }
    text + &"}\n".repeat(path.len())
}

fn for_each_argument(
    path: &mut Vec<&'static BlockType>,
    visit: &mut dyn FnMut(&[&BlockType], &str),
) {
    let block = *path.last().expect("a block");
    for argument in block.arguments {
        visit(path, argument.name);
    }
    for inner in block.blocks {
        path.push(inner);
        for_each_argument(path, visit);
        path.pop();
    }
}

#[test]
fn no_schema_argument_leaks_sensitive_values() {
    let (mut found, mut place) = (Vec::new(), 0);
    for block in root_block().blocks {
        for_each_argument(&mut vec![*block], &mut |path, argument| {
            for value in [
                "var.tok",
                "secret(\"tok\")",
                "\"x-${var.tok}\"",
                "[var.tok]",
                "{ (var.tok) = 1 }",
                "{ a = lower(var.tok) }",
            ] {
                let rest = "cluster \"demo\" {\n  simulated {}\n}\npool \"p\" {}\n";
                let text = format!("{}{rest}", nested_blocks(path, argument, value));
                found.extend(leaked(&text, place));
                place += 1;
            }
            place += 1;
        });
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The configurations of other tests contain every argument in a valid context.
#[test]
fn no_string_position_leaks_sensitive_values() {
    let mut found = BTreeSet::new();
    for (index, text) in corpus().iter().enumerate() {
        let quotes: Vec<usize> = text.match_indices('"').map(|(at, _)| at).collect();
        for (place, pair) in quotes.chunks_exact(2).enumerate() {
            let (before, after) = (&text[..=pair[0]], &text[pair[1]..]);
            let text = format!("{before}${{var.tok}}{after}");
            found.extend(leaked(&text, index + place));
        }
    }
    let found: Vec<String> = found.into_iter().collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn schedules_and_references_leak_no_sensitive_values() {
    for (nth, wrong) in [
        "schedule \"s\" {\n  start = \"0 8 * * *\"\n  duration = \"1h\"\n  timezone = var.tok\n}\n",
        "schedule \"s\" {\n  start = var.tok\n  duration = \"1h\"\n}\n",
        "schedule \"s\" {\n  start = \"0 8 * * ${var.tok}\"\n  duration = \"1h\"\n}\n",
        "pool \"p\" {\n  clusters = [var.tok]\n}\n",
        "pool \"p\" {\n  clusters = [\"${var.tok}*\"]\n}\n",
        "outrigger {\n  required_version = var.tok\n}\n",
        "data \"terraform_output\" \"d\" {\n  file = \"/x/${var.tok}\"\n}\n",
        "data \"terraform_output\" \"d\" {\n  state = \"/x/${var.tok}\"\n}\n",
    ]
    .into_iter()
    .enumerate()
    {
        let text = format!("cluster \"demo\" {{\n  simulated {{}}\n}}\n{wrong}");
        assert!(!problems(&text, FORMS[0]).is_empty(), "{text}");
        assert_eq!(leaked(&text, nth), None);
        assert_eq!(leaked(&text, 0), None);
    }
}

/// A short secret is hidden where the message quotes it. The rest of the message is unchanged.
#[test]
fn short_secret_is_hidden_without_garbling_the_message() {
    let text = "cluster \"demo\" {\n  simulated {}\n}\npool \"p\" {\n  clusters = [var.tok]\n}\n";
    let problems = problems(text, "no");
    assert_eq!(problems[0].detail, "There is no cluster named (sensitive).");
}
