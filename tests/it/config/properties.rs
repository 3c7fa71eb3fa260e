//! Properties of the loader: it returns a result for any input, and evaluates as hcl-rs does.

use std::fs;
use std::path::Path;

use outrigger::config::diagnostic::{Diagnostic, render_all, report_json};
use outrigger::config::{Config, Inputs, SourceFile, load};
use proptest::collection::vec;
use proptest::prelude::any;
use proptest::sample::{Index, select};
use proptest::{option, prop_assert, proptest};

use super::load_text;

/// Loads a text as HCL, as JSON and as variable values, and renders the problems.
fn check_load(text: &str) {
    for name in ["main.hcl", "main.hcl.json"] {
        let files = [SourceFile::new(name, text)];
        check_rendering(load(&files, &Inputs::default()));
    }
    let inputs =
        Inputs { var_files: vec![SourceFile::new("x.vars.hcl", text)], ..Inputs::default() };
    check_rendering(load(&[], &inputs));
}

fn check_rendering(answer: Result<Config, Vec<Diagnostic>>) {
    let problems = answer.map_or_else(|problems| problems, |config| config.warnings);
    let text = render_all(&problems);
    let report = report_json(&problems);
    assert_eq!(problems.is_empty(), text.is_empty(), "{report}");
    for problem in &problems {
        assert!(!problem.detail.is_empty(), "{text}");
        for range in &problem.ranges {
            assert!(range.start.line > 0 && range.start.column > 0, "{text}");
        }
    }
}

/// Returns every valid and invalid configuration of the tests.
pub(super) fn corpus() -> Vec<String> {
    fn collect(folder: &Path, texts: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a folder of cases") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, texts);
            } else {
                texts.push(fs::read_to_string(path).expect("a case in UTF-8"));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let mut texts = Vec::new();
    collect(&root.join("good-config"), &mut texts);
    collect(&root.join("bad-config"), &mut texts);
    texts.sort();
    texts
}

/// Tokens of HCL and JSON.
const PIECES: [&str; 36] = [
    "{",
    "}",
    "[",
    "]",
    "(",
    ")",
    "\"",
    "${",
    "%{ if true }",
    "%{ endif }",
    "%{ for x in y }",
    "\n",
    "=",
    ",",
    ":",
    "#",
    "/*",
    "<<-EOT\n",
    "\nEOT\n",
    "...",
    "[*]",
    ".*",
    "?",
    "!",
    "-",
    "for k, v in local : ",
    "null",
    "99999999999999999999",
    "1e308",
    "try(",
    "each.value",
    "local.tags",
    "ü\u{300}",
    "\u{feff}",
    "\\",
    "\0",
];

/// A change of a text: position, length, and the new piece.
type Change = (Index, u8, Option<&'static str>);

fn change(text: &mut String, (place, length, piece): &Change) {
    let floor = |text: &str, mut at: usize| {
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = floor(text, place.index(text.len() + 1));
    let end = floor(text, (start + usize::from(*length % 16)).min(text.len()));
    let old = text[start..end].to_owned();
    match piece {
        Some(piece) => text.replace_range(start..end, piece),
        None if length % 2 == 0 => text.replace_range(start..end, ""),
        None => text.insert_str(start, &old.repeat(3)),
    }
}

/// Parts of one configuration.
const MODULE: [&str; 3] = [
    "cluster \"demo\" {\n  simulated {}\n}\nbuffer \"b\" {\n  replicas = 1\n  pool = pool.one\n  \
     pod { requests = { cpu = 1 } }\n}\n",
    "pool \"one\" {\n  labels = { team = local.team }\n}\n",
    "pool \"two\" {\n  weight = var.weight\n}\nbuffer \"a\" {\n  replicas = 1\n  \
     pod { requests = { cpu = 1 } }\n}\n",
];

fn overlay(name: &str, key: &str, weight: u32) -> String {
    format!(
        "overlay {name:?} {{\n  price = 1\n  weight = {weight}\n  \
         require {key:?} {{ exists = true }}\n}}\n"
    )
}

proptest! {
    #[test]
    fn loader_handles_any_bytes(bytes in vec(any::<u8>(), 0..400)) {
        check_load(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn loader_handles_any_sequence_of_tokens(pieces in vec(select(&PIECES[..]), 0..40)) {
        check_load(&pieces.concat());
        check_load(&format!("locals {{\n  a = {}\n}}\n", pieces.concat()));
    }

    #[test]
    fn loader_handles_altered_configurations(
        text in select(corpus()),
        changes in vec((any::<Index>(), any::<u8>(), option::of(select(&PIECES[..]))), 1..6),
    ) {
        let mut text = text;
        for one in &changes {
            change(&mut text, one);
        }
        check_load(&text);
    }

    #[test]
    fn file_order_does_not_change_the_configuration(seed in any::<Index>()) {
        let mut files = vec![
            SourceFile::new("a.hcl", &*format!("{}{}", MODULE[0], overlay("a", "x", 0))),
            SourceFile::new("b.hcl", &*format!("{}{}", MODULE[1], overlay("b", "y", 0))),
            SourceFile::new("c.hcl", &*format!("{}{}", MODULE[2], overlay("c", "x", 7))),
            SourceFile::new(
                "d.hcl",
                "locals {\n  team = \"a\"\n}\nvariable \"weight\" {\n  default = 3\n}\n",
            ),
        ];
        let load = |files: &[SourceFile]| {
            let config = load(files, &Inputs::default());
            let mut config = config.expect("a good configuration");
            // Warnings have the order of the files.
            config.warnings.sort_by_key(Diagnostic::render);
            config
        };
        let expect = load(&files);
        let turns = seed.index(files.len());
        files.rotate_left(turns);
        files.swap(0, 1);
        let got = load(&files);
        prop_assert!(got == expect);
    }
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let shapes = [
        ("[", "]"),
        ("(", ")"),
        ("{ a = ", "}"),
        ("!", ""),
        ("-", ""),
        ("\"${", "}\""),
        ("f(", ")"),
        ("a[", "]"),
        ("1 + ", "1"),
        ("true ? 1 : ", "1"),
        ("[for x in ", " : x]"),
        ("\"%{ if true }", "%{ endif }\""),
        ("a.", "a"),
        ("try(", ")"),
    ];
    for depth in [60, 130, 5000] {
        for (open, close) in shapes {
            let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            check_load(&format!("locals {{\n  a = {nested}\n}}\n"));
            check_load(&format!("locals {{\n  a = {}", open.repeat(depth)));
            let quoted = serde_json::to_string(&nested).expect("a text");
            check_load(&format!("{{\"locals\": {{\"a\": \"${{1}}\", \"b\": {quoted}}}}}"));
        }
        for (one, _) in shapes {
            let mixed: String = shapes.iter().map(|(other, _)| format!("{one}{other}")).collect();
            check_load(&format!("locals {{\n  a = {}", mixed.repeat(depth / 10)));
        }
        check_load(&format!("{}{}", "a {\n".repeat(depth), "}\n".repeat(depth)));
        check_load(&format!("{}{}", "{\"a\":".repeat(depth), "}".repeat(depth)));
        check_load(&format!("{{\"locals\": {}{}}}", "[".repeat(depth), "]".repeat(depth)));
        let json = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        check_load(&format!(
            "locals {{\n  a = jsondecode(\"{json}\")\n  b = yamldecode(\"{json}\")\n}}\n"
        ));
    }
}

#[test]
fn loader_handles_long_chains_of_locals() {
    let link = |index: usize, value: &str| format!("  l{index} = {value}\n");
    let chain = |value: &dyn Fn(usize) -> String| {
        let links: String = (1..5000).map(|index| link(index, &value(index))).collect();
        format!("locals {{\n  l0 = 1\n{links}}}\n")
    };
    check_load(&chain(&|index| format!("local.l{}", index - 1)));
    check_load(&chain(&|index| format!("[local.l{}]", index - 1)));
    check_load(&chain(&|index| format!("[local.l{0}, local.l{0}]", index - 1)));
    check_load(&chain(&|index| format!("\"${{local.l{0}}}${{local.l{0}}}\"", index - 1)));
    check_load(&chain(&|index| format!("local.l{}", (index + 1) % 5000)));
}

/// Evaluates an expression, and returns the result as JSON.
fn evaluate(expression: &str) -> Result<String, String> {
    let text = format!(
        r#"
cluster "demo" {{
  simulated {{}}
}}
locals {{
  list = ["a", "b", "c"]
  map = {{ x = 1, y = {{ z = [1, 2] }} }}
  none = null
}}
pool "p" {{
  annotations = {{ value = jsonencode([
{expression}
]) }}
}}
"#
    );
    let config = load_text(&text).map_err(|problems| render_all(&problems))?;
    Ok(config.clusters[0].pools[0].annotations["value"].clone())
}

fn evaluate_with_hcl_rs(expression: &str) -> String {
    use hcl::eval::{Context, Evaluate};
    let mut context = Context::new();
    let local: hcl::Value = hcl::value!({
        list = ["a", "b", "c"]
        map = { x = 1, y = { z = [1, 2] } }
        none = null
    });
    context.declare_var("local", local);
    let expression: hcl::Expression = format!("[\n{expression}\n]").parse().expect("an expression");
    let value = expression.evaluate(&context).expect("a value");
    let json: serde_json::Value = hcl::from_value(value).expect("a value that is JSON");
    json.to_string()
}

/// hcl-rs evaluates these as Terraform does. For other expressions, functions.rs has its own cases.
#[test]
fn expressions_evaluate_as_in_hcl_rs() {
    let expressions = [
        "1 + 2 * 3 - 4 % 3",
        "(1 + 2) * 3",
        "7 / 2",
        "6 / 2",
        "-3",
        "!true",
        "1 < 2 && 2 <= 2",
        "1 == 1.0",
        "\"1\" == 1",
        "true || false",
        "1 > 2 ? \"a\" : \"b\"",
        "local.list[1]",
        "local.map.y.z[0]",
        "local.map[\"x\"]",
        "local.list[*]",
        "local.none[*]",
        "local.map.y[*].z",
        "[local.map, local.map][*].x",
        "[local.map, local.map].*.y.z",
        "[for i, x in local.list : i]",
        "[for x in local.list : x if x != \"b\"]",
        "{ for i, x in local.list : x => i }",
        "{ for x in local.list : \"k\" => x... }",
        "\"a${local.map.x}b\"",
        "\"${local.list}\"",
        "\"$${x} %%{y}\"",
        "\"%{ if true }yes%{ else }no%{ endif }\"",
        "\"%{ for x in local.list }${x},%{ endfor }\"",
        "\"a  ${~ local.map.x ~}  b\"",
        "<<EOT\nline ${local.map.x}\n  more\nEOT",
        "<<-EOT\n    indented\n      more\n    ${local.map.x}\n  EOT",
        "<<-EOT\n  %{ for x in local.list ~}\n  - ${x}\n  %{ endfor ~}\n  end\n  EOT",
        "\"tab\\tnew\\nquote\\\" \\u00e9\"",
        "{ a = 1, \"b\" = 2, (\"c\") = 3 }",
    ];
    for expression in expressions {
        let got = evaluate(expression).unwrap_or_else(|text| panic!("{expression}:\n{text}"));
        let expect: serde_json::Value = evaluate_with_hcl_rs(expression).parse().expect("JSON");
        let got: serde_json::Value = got.parse().expect("JSON");
        assert_eq!(sorted(&got), sorted(&expect), "{expression}");
    }
}

/// Returns the JSON with sorted keys.
fn sorted(json: &serde_json::Value) -> String {
    match json {
        serde_json::Value::Object(items) => {
            let mut parts: Vec<String> =
                items.iter().map(|(key, item)| format!("{key}:{}", sorted(item))).collect();
            parts.sort();
            format!("{{{}}}", parts.join(","))
        }
        serde_json::Value::Array(items) => {
            let parts: Vec<String> = items.iter().map(sorted).collect();
            format!("[{}]", parts.join(","))
        }
        other => other.to_string(),
    }
}
