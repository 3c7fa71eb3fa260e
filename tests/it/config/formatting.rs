//! Compares `fmt` with `terraform fmt`, on generated files and on real files with modified
//! whitespace and tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger::config::SourceFile;
use outrigger::config::format::format;

/// The number of generated files, and of altered real files, as documented.
const GENERATED: u64 = 500;
const ALTERED: u64 = 100;

/// Writes valid HCL with irregular layout.
struct Writer {
    chance: fastrand::Rng,
    text: String,
}

impl Writer {
    fn new(seed: u64) -> Self {
        Self { chance: fastrand::Rng::with_seed(seed), text: String::new() }
    }

    fn pick<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.chance.usize(..all.len())]
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.chance.u32(..count) == 0
    }

    fn put(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Optional white space.
    fn optional_space(&mut self) {
        let gap = self.pick(&["", "", " ", " ", "  ", "\t", "     "]);
        self.put(gap);
    }

    /// Required white space.
    fn required_space(&mut self) {
        let gap = self.pick(&[" ", " ", "  ", "\t ", "    "]);
        self.put(gap);
    }

    /// A comment at an unusual position.
    fn comment(&mut self) {
        let comment = self.pick(&["", " ", " ", "  ", " ", " ", "/* c */", " /*/ a = 1 */ "]);
        self.put(comment);
    }

    fn name(&mut self) {
        let name = self.pick(&[
            "a",
            "name",
            "for_each",
            "tags",
            "type",
            "in",
            "value-1",
            "grüße",
            "_x",
            "default",
            "e\u{301}te\u{301}",
            "col·lecció",
        ]);
        self.put(name);
    }

    fn line_end(&mut self) {
        self.optional_space();
        let end = self.pick(&[
            "\n",
            "\n",
            "\n",
            "\n",
            "\n\n",
            "\n\n\n",
            " # why\n",
            "# why not\n",
            " // so\n",
            " /* aside */\n",
            "\n# own line\n",
            "\n   // another\n",
            "\n/* over\n  lines */\n",
            " # e\u{301}tendu 漢字 👩‍👩‍👧\n",
        ]);
        self.put(end);
    }

    fn body(&mut self, depth: u32, top: bool) {
        let names = self.chance.usize(0..6);
        for at in 0..names {
            self.optional_space();
            match self.chance.u32(0..10) {
                0..4 if depth > 0 => self.block(depth - 1, top),
                _ => {
                    self.name();
                    // Each argument has a unique name.
                    self.put(&format!("{at}"));
                    self.comment();
                    self.put("=");
                    self.optional_space();
                    if self.one_in(12) {
                        self.heredoc(depth);
                        // The last line of a heredoc has nothing else.
                        self.put("\n");
                        continue;
                    }
                    if self.one_in(20) {
                        self.put("/* first */");
                    }
                    self.value(depth);
                }
            }
            self.line_end();
        }
    }

    fn block(&mut self, depth: u32, top: bool) {
        let is_variable = top && self.one_in(3);
        if is_variable {
            self.put("variable");
        } else {
            self.name();
        }
        for _ in 0..self.chance.usize(0..3) {
            self.required_space();
            self.comment();
            let label = self.pick(&["\"label\"", "\"a b\"", "\"\"", "plain", "\"x.y/z\"", "\"ü\""]);
            self.put(label);
        }
        self.required_space();
        self.comment();
        self.put("{");
        self.optional_space();
        if self.one_in(4) {
            self.put("}");
            return;
        }
        if self.one_in(4) {
            self.name();
            self.optional_space();
            self.put("=");
            self.optional_space();
            self.operand(0);
            self.optional_space();
            self.put("}");
            return;
        }
        self.line_end();
        if is_variable || self.one_in(5) {
            let kind = self.pick(&[
                "list",
                "\"string\"",
                "\"list\"",
                "map",
                "set",
                "\"map\"",
                "any",
                "\"set\"",
                "string",
                "map( string )",
                "object({a=string,b=list(number)})",
                "\"number\"",
            ]);
            self.put("type");
            self.optional_space();
            self.put("=");
            self.optional_space();
            self.put(kind);
            self.line_end();
        }
        self.body(depth, false);
        self.put("}");
    }

    fn value(&mut self, depth: u32) {
        if self.one_in(12) {
            self.wrapped(depth);
        } else {
            self.expression(depth);
        }
    }

    /// `"${x}"`, which is `x`.
    fn wrapped(&mut self, depth: u32) {
        let open = self.pick(&["\"${", "\"${", "\"${~", "\"%{"]).replace('%', "$");
        self.put(&open);
        self.optional_space();
        self.expression(depth.min(1));
        self.optional_space();
        self.put("}");
        let rest = self.pick(&["", "", "", " and", "${a}"]);
        self.put(rest);
        self.put("\"");
    }

    fn heredoc(&mut self, depth: u32) {
        let begin = self.pick(&["<<EOT", "<<-EOT", "<<-END_1"]);
        let word = begin.trim_start_matches(['<', '-']).to_owned();
        self.put(begin);
        self.put("\n");
        // The parser continues an empty heredoc.
        for _ in 0..self.chance.usize(1..4) {
            let line = self.pick(&[
                "plain",
                "   indented {",
                "",
                "\ttab ] )",
                "# no comment",
                "$${x} %%{ y }",
                "\"q\"",
                "EOTs",
                "a = b",
                "%{if   x}yes%{ else }no%{  endif ~}",
            ]);
            self.put(line);
            if self.one_in(3) {
                self.put("${");
                self.optional_space();
                self.operand(depth.min(1));
                self.optional_space();
                self.put("}");
            }
            self.put("\n");
        }
        if begin.contains('-') {
            self.optional_space();
        }
        self.put(&word);
    }

    fn expression(&mut self, depth: u32) {
        self.operand(depth);
        match self.chance.u32(0..8) {
            0 | 1 => {
                let operator = self
                    .pick(&["+", "-", "*", "/", "%", "==", "!=", "<", ">", "<=", ">=", "&&", "||"]);
                // `a-1` is a name.
                self.required_space();
                self.put(operator);
                self.optional_space();
                self.operand(depth.saturating_sub(1));
            }
            2 => {
                self.required_space();
                self.put("?");
                self.optional_space();
                self.operand(depth.saturating_sub(1));
                self.required_space();
                self.put(":");
                self.optional_space();
                self.operand(depth.saturating_sub(1));
            }
            _ => {}
        }
    }

    /// An operand without inner operands.
    fn leaf(&mut self, kind: u32) {
        match kind {
            0 => {
                let number = self.pick(&["0", "12", "1.5", "2e3", "1.5E-7", "-3", "- 4"]);
                self.put(number);
            }
            1 | 2 => {
                let text = self.pick(&[
                    "\"\"",
                    "\"text\"",
                    "\"a  b\"",
                    "\"q \\\" ${ x }  y\"",
                    "\"$${no}\"",
                    "\"%{ if a }b%{ else }c%{ endif }\"",
                    "\"${a}${ b }\"",
                    "\"漢字 ${~ x ~} \"",
                    "\"${ { a = 1 }[\"a\"] }\"",
                    "\"#no // comment /* \"",
                    "\"${\"${in}\"}\"",
                ]);
                self.put(text);
            }
            3 => {
                let word = self.pick(&["true", "null", "x", "var.y", "local.z[0]", "each.key"]);
                self.put(word);
            }
            4 => {
                let path = self.pick(&[
                    "a . b",
                    "a[ 1 ]",
                    "a [\"k\"]",
                    "a.*.id",
                    "a[*].id",
                    "a.0.b",
                    "a[x][ y ].z",
                ]);
                self.put(path);
            }
            5 => {
                let call = self.pick(&["f()", "f( )", "f (a,b )", "f(a...)", "f( a , b ... )"]);
                self.put(call);
            }
            6 => {
                let sign = self.pick(&["!", "-", "! ", "!!"]);
                self.put(sign);
                self.put("x");
            }
            _ => {
                let empty = self.pick(&["{}", "[]", "{ }", "[ ]", "( 1 )", "{\n}", "[\n]"]);
                self.put(empty);
            }
        }
    }

    fn operand(&mut self, depth: u32) {
        let kinds = if depth == 0 { 8 } else { 16 };
        match self.chance.u32(0..kinds) {
            kind @ 0..8 => self.leaf(kind),
            8 | 9 => self.list(depth - 1, '[', ']'),
            10 | 11 => self.object(depth - 1),
            12 => {
                self.put("f");
                self.list(depth - 1, '(', ')');
            }
            13 => {
                self.put("(");
                self.optional_space();
                self.expression(depth - 1);
                self.optional_space();
                self.put(")");
            }
            14 => {
                let head = self.pick(&[
                    "[for x in [ a ]:",
                    "[ for k , v in m :",
                    "{for k,v in m:",
                    "[\nfor x in y:\n",
                ]);
                self.put(head);
                self.optional_space();
                self.operand(depth - 1);
                let is_object = head.starts_with('{');
                if is_object {
                    self.required_space();
                    self.put("=>");
                    self.optional_space();
                    self.operand(depth - 1);
                }
                if self.one_in(3) {
                    self.required_space();
                    self.put("if x != \"\"");
                }
                self.put(if is_object { "}" } else { "]" });
            }
            _ => self.wrapped(depth - 1),
        }
    }

    fn optional_line_break(&mut self) {
        if self.one_in(2) {
            let line = self.pick(&["\n", "\n", " # why\n", "\n\n", "\n  // so\n"]);
            self.put(line);
        } else {
            self.optional_space();
        }
    }

    fn list(&mut self, depth: u32, open: char, close: char) {
        self.text.push(open);
        self.optional_line_break();
        let count = self.chance.usize(0..4);
        for at in 0..count {
            self.operand(depth);
            self.optional_space();
            if at + 1 < count || self.one_in(3) {
                self.put(",");
            }
            self.optional_line_break();
        }
        self.text.push(close);
    }

    fn object(&mut self, depth: u32) {
        self.put("{");
        let lines = self.one_in(2);
        self.put(if lines { "\n" } else { " " });
        let count = self.chance.usize(0..4);
        for at in 0..count {
            self.optional_space();
            let key = self.pick(&["key#", "\"k k#\"", "(var.k#)", "k-1#", "\"${ k# }\""]);
            // Each key is unique.
            self.put(&key.replace('#', &at.to_string()));
            self.optional_space();
            let equal = self.pick(&["=", "=", "=", ":"]);
            self.put(equal);
            self.optional_space();
            self.operand(depth);
            if lines {
                self.line_end();
            } else if at + 1 < count {
                self.put(",");
                self.optional_space();
            }
        }
        self.put("}");
    }
}

fn generated(seed: u64) -> String {
    let mut writer = Writer::new(seed);
    writer.body(4, true);
    if seed.is_multiple_of(10) {
        return writer.text.replace('\n', "\r\n");
    }
    if seed % 10 == 1 {
        writer.put("last={}");
    }
    writer.text
}

/// Returns every HCL file that is shipped or used by tests.
fn real_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![
        root.join("config"),
        root.join("terraform"),
        root.join("tests/it/config/good"),
        root.join("tests/it/good-config"),
    ];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".hcl") || name.ends_with(".tf") {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(files.len() > 10, "{files:?}");
    files
}

/// Returns a file with other white space, line breaks and comments.
fn altered(text: &str, seed: u64) -> String {
    let mut writer = Writer::new(seed);
    for line in text.lines() {
        let quoted = line.contains('"') || line.contains("<<");
        for (at, part) in line.split(' ').enumerate() {
            if at > 0 {
                let gap = if quoted { " " } else { writer.pick(&[" ", " ", "  ", "\t"]) };
                writer.put(gap);
            }
            writer.put(part);
        }
        let open = line.trim_end().ends_with(['{', '[', '(', ',']);
        if open && writer.one_in(3) {
            writer.put("\n");
        }
        if line.trim_end().ends_with(['}', ']']) && writer.one_in(3) {
            writer.put(" # why");
        }
        writer.put("\n");
    }
    writer.text
}

/// Formats the `.tf` files of this folder with Terraform. Returns `None` if it is not installed.
fn terraform(folder: &Path) -> Option<std::process::Output> {
    let mut command = Command::new("terraform");
    command.args(["fmt", "-list=false", "-no-color"]);
    // The settings of the user who runs the tests must not apply.
    command.arg(folder).current_dir(folder).env_remove("TF_CLI_ARGS");
    command.output().ok()
}

fn formatted(name: &str, text: &str) -> Result<String, String> {
    format(&SourceFile::new(name, text)).map_err(|problems| format!("{problems:?}"))
}

#[test]
fn fmt_output_equals_terraform_fmt() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut files: Vec<(String, String)> =
        (0..GENERATED).map(|seed| (format!("generated-{seed}.tf"), generated(seed))).collect();
    let real = real_files();
    for at in 0..ALTERED {
        let path = &real[usize::try_from(at).expect("few") % real.len()];
        let text = fs::read_to_string(path).expect("text");
        files.push((format!("real-{at}.tf"), altered(&text, at)));
    }
    for (name, text) in &files {
        fs::write(folder.path().join(name), text).expect("written");
    }
    let Some(done) = terraform(folder.path()) else {
        let test = "config::formatting::fmt_output_equals_terraform_fmt";
        println!("SKIP {test}: terraform is not installed");
        return;
    };
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    let mut wrong = Vec::new();
    for (name, text) in &files {
        assert!(!errors.contains(&format!("on {name} line")), "{name}: {errors}");
        let expected = fs::read_to_string(folder.path().join(name)).expect("text");
        let ours = formatted(name, text);
        if ours.as_ref() != Ok(&expected) {
            wrong.push((name, text, expected, ours));
        }
    }
    if let Some((name, text, expected, ours)) = wrong.first() {
        let ours = ours.clone().unwrap_or_else(|error| error);
        let at = ours.lines().zip(expected.lines()).find(|(own, theirs)| own != theirs);
        let count = wrong.len();
        panic!("{count} differences; {name}: {at:#?}\n--- text\n{text}\n--- ours\n{ours}");
    }
    // Terraform's own output is not always stable: a second run changes deeply nested values.
    terraform(folder.path());
    let mut resting = 0;
    for (name, text) in &files {
        let once = formatted(name, text).expect("it was valid before");
        let twice = fs::read_to_string(folder.path().join(name)).expect("text");
        assert_eq!(formatted(name, &once).as_ref(), Ok(&twice), "{name}");
        resting += usize::from(once == twice);
    }
    assert!(resting * 100 > files.len() * 95, "{resting} of {}", files.len());
}
