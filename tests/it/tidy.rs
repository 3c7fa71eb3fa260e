//! Checks the architecture of the tree: the order of `mod` lines determines which module may use
//! which. It reads source as text, so it needs nothing of the crate to compile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lexer::{Kind, Lexed, Token, lex};

mod lexer;
mod property_tests;
mod rules;
mod words;

/// The maximum number of lines of production code in a file.
const FILE_LINES: usize = 500;
/// The maximum line width.
const COLUMNS: usize = 100;
/// Vague names of files and modules.
const VAGUE: [&str; 7] = ["common", "helper", "helpers", "manager", "misc", "util", "utils"];
/// Macros and attributes of unfinished code.
const UNFINISHED: [&str; 3] = ["dbg", "todo", "unimplemented"];
const FORBIDDEN_ATTRIBUTES: [(&str, &str); 2] = [
    ("allow", "does not warn when it is no longer needed: use `#[expect]`"),
    ("ignore", "disables a test"),
];
/// Crates and standard modules that perform I/O, wait, or are not deterministic.
const FORBIDDEN_IN_CORE: [&str; 15] = [
    "anyhow",
    "clap",
    "k8s_openapi",
    "kube",
    "tokio",
    "tracing",
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "getrandom",
    "rand::random",
    "rand::rng",
    "fastrand::Rng::new",
];
/// The lowest top-level module whose feature-gated children may perform I/O or wait.
const LOWEST_WITH_FEATURES: &str = "host";
/// Types and functions that are forbidden under any path.
const FORBIDDEN_WORDS_IN_CORE: [&str; 9] = [
    "Instant",
    "OsRng",
    "RandomState",
    "SysRng",
    "SystemTime",
    "ThreadRng",
    "from_entropy",
    "from_os_rng",
    "thread_rng",
];

/// Files by their path from the root of the repository.
type Files = BTreeMap<String, String>;
/// A module's path from its crate, which is itself the empty path.
type ModulePath = Vec<String>;

/// A `mod` line.
struct Declared {
    name: String,
    /// Whether it is compiled only with the feature `cli`, `daemon` or `aws`, which the core lacks.
    requires_feature: bool,
}

/// A file that a `mod` line reaches, with the module to which each of its tokens belongs.
struct Reached {
    file: String,
    lexed: Lexed,
    modules: Vec<ModulePath>,
    test: bool,
}

/// The files reachable from one root file, and the children of each module in the order of
/// declaration.
struct Crate {
    files: Vec<Reached>,
    children: BTreeMap<ModulePath, Vec<Declared>>,
}

/// Returns every violation in a tree, by file and line.
fn findings(files: &Files) -> Vec<String> {
    let mut found = BTreeSet::new();
    let mut reached = BTreeSet::new();
    for root in ["src/lib.rs", "src/main.rs", "tests/it/main.rs"] {
        let unit = Crate::read(files, root);
        for file in &unit.files {
            reached.insert(file.file.clone());
            check_text(file, &files[&file.file], &mut found);
            if root != "tests/it/main.rs" && !file.test {
                check_length(file, &mut found);
                check_order(&unit, file, &mut found);
            }
            if root == "src/lib.rs" && !file.test {
                check_core(&unit, file, &mut found);
            }
        }
    }
    for file in files.keys().filter(|file| !reached.contains(*file)) {
        found.insert((file.clone(), 1, "no `mod` line reaches this file".to_owned()));
    }
    found.into_iter().map(|(file, line, fault)| format!("{file}:{line}: {fault}")).collect()
}

type Found = BTreeSet<(String, usize, String)>;

impl Crate {
    fn read(files: &Files, root: &str) -> Self {
        let folder = root.rsplit_once('/').map_or("", |(folder, _)| folder);
        let mut unit = Self { files: Vec::new(), children: BTreeMap::new() };
        let mut todo = vec![(root.to_owned(), ModulePath::new(), false)];
        while let Some((file, module, test)) = todo.pop() {
            let Some(text) = files.get(&file) else {
                continue;
            };
            let lexed = lex(text);
            let modules = unit.declare(&lexed.tokens, module, |child, in_test| {
                todo.push((format!("{folder}/{}.rs", child.join("/")), child, test || in_test));
            });
            unit.files.push(Reached { file, lexed, modules, test });
        }
        unit
    }

    /// Records the `mod` lines of a file, and calls `elsewhere` for those with a separate file.
    /// Returns the module of each token.
    fn declare(
        &mut self,
        tokens: &[Token],
        module: ModulePath,
        mut visit_file: impl FnMut(ModulePath, bool),
    ) -> Vec<ModulePath> {
        let mut here = module;
        let mut depth = 0_usize;
        let mut open = Vec::new();
        let mut modules = Vec::with_capacity(tokens.len());
        for (i, token) in tokens.iter().enumerate() {
            modules.push(here.clone());
            if token.is_mark("{") {
                depth += 1;
            } else if token.is_mark("}") {
                depth = depth.saturating_sub(1);
                if open.last() == Some(&depth) {
                    open.pop();
                    here.pop();
                }
            }
            let [keyword, name, mark, ..] = &tokens[i.saturating_sub(2)..=i] else {
                continue;
            };
            if !keyword.is_word("mod") || name.kind != Kind::Word {
                continue;
            }
            let requires_feature = requires_feature(tokens, i - 2);
            let declared = Declared { name: name.text.clone(), requires_feature };
            let mut child = here.clone();
            child.push(name.text.clone());
            if mark.is_mark(";") || mark.is_mark("{") {
                self.children.entry(here.clone()).or_default().push(declared);
            }
            if mark.is_mark(";") {
                visit_file(child, token.test);
            } else if mark.is_mark("{") {
                open.push(depth - 1);
                here = child;
            }
        }
        modules
    }

    /// Whether the `mod` line of this module requires a feature.
    fn requires_feature(&self, module: &[String]) -> bool {
        let Some((name, parent)) = module.split_last() else {
            return false;
        };
        let siblings = self.children.get(parent).map_or(&[][..], Vec::as_slice);
        let mut declared = siblings.iter().filter(|it| it.name == *name).peekable();
        declared.peek().is_some() && declared.all(|it| it.requires_feature)
    }

    /// Returns the position of a module among its siblings, or `None` if it is no module.
    fn place(&self, parent: &[String], name: &str) -> Option<usize> {
        self.children.get(parent)?.iter().position(|child| child.name == name)
    }

    /// Returns the module on the path to `target` that `from` must not use, if any.
    fn later_module(&self, from: &[String], target: &[String]) -> Option<String> {
        let shared = from.iter().zip(target).take_while(|(a, b)| a == b).count();
        let (own, other) = (from.get(shared)?, target.get(shared)?);
        let (own, place) = (self.place(&from[..shared], own)?, self.place(&from[..shared], other)?);
        (place > own).then(|| target[..=shared].join("::"))
    }
}

/// Whether an attribute right before the `mod` at `keyword` requires a feature that the core build
/// lacks.
fn requires_feature(tokens: &[Token], keyword: usize) -> bool {
    let attributes = tokens[..keyword]
        .iter()
        .rev()
        .take_while(|token| !token.is_mark(";") && !token.is_mark("{") && !token.is_mark("}"));
    let words: Vec<&str> = attributes.map(|token| token.text.as_str()).collect();
    let features = ["aws", "cli", "daemon"];
    let is_feature = |w: &[&str]| w[1..] == ["=", "feature"] && features.contains(&w[0]);
    words.windows(3).any(is_feature) && !words.contains(&"not")
}

fn check_text(file: &Reached, text: &str, found: &mut Found) {
    let mut fault = |line: usize, what: String| found.insert((file.file.clone(), line, what));
    if !text.starts_with("//!") {
        fault(1, "the file does not start with `//!`".to_owned());
    }
    let stem = file.file.rsplit('/').next().and_then(|name| name.strip_suffix(".rs"));
    if let Some(stem) = stem.filter(|stem| VAGUE.contains(stem)) {
        fault(1, format!("`{stem}` is a vague file name: name what the file contains"));
    }
    for (line, text) in (1..).zip(text.lines()) {
        let columns = text.chars().count();
        if columns > COLUMNS {
            fault(line, format!("{columns} columns, {COLUMNS} at most"));
        }
    }
    for (line, _) in file.lexed.comments.iter().filter(|(_, text)| text.contains("FIXME")) {
        fault(*line, "`FIXME` is unfinished work".to_owned());
    }
    let mut is_open = false;
    for (line, text) in &file.lexed.comments {
        let Some(language) = text.trim_start_matches(['/', '!', ' ']).strip_prefix("```") else {
            continue;
        };
        if !is_open && language.trim() != "text" {
            fault(*line, "no test runs this example: make it a test".to_owned());
        }
        is_open = !is_open;
    }
    let tokens = &file.lexed.tokens;
    for (i, pair) in tokens.windows(2).enumerate() {
        let (token, next) = (&pair[0], &pair[1]);
        let (line, word) = (token.first, token.text.as_str());
        if token.kind == Kind::Word && next.is_mark("!") && UNFINISHED.contains(&word) {
            fault(line, format!("`{word}!` is unfinished work"));
        }
        if token.is_word("mod") && VAGUE.contains(&next.text.as_str()) {
            fault(line, format!("`{}` is a vague module name", next.text));
        }
        for word in lexer::attribute(tokens, i).map_or(&[][..], |inside| &tokens[inside]) {
            let forbidden = FORBIDDEN_ATTRIBUTES.iter().find(|(name, _)| word.is_word(name));
            if let Some((name, why)) = forbidden {
                fault(word.first, format!("`#[{name}]` {why}"));
            }
        }
    }
}

fn check_length(file: &Reached, found: &mut Found) {
    let live = file.lexed.tokens.iter().filter(|token| !token.test);
    let lines: BTreeSet<usize> = live.flat_map(|token| token.first..=token.last).collect();
    if lines.len() > FILE_LINES {
        let fault = format!("{} lines of production code, {FILE_LINES} at most", lines.len());
        found.insert((file.file.clone(), 1, fault));
    }
}

fn check_order(unit: &Crate, file: &Reached, found: &mut Found) {
    for (at, line, path) in paths(&file.lexed.tokens) {
        let from = &file.modules[at];
        let Some(target) = resolve(from, &path) else {
            continue;
        };
        if let Some(late) = unit.later_module(from, &target) {
            let from = from.join("::");
            let fault = format!("`{from}` names `{late}`, which is declared after it");
            found.insert((file.file.clone(), line, fault));
        }
    }
}

fn check_core(unit: &Crate, file: &Reached, found: &mut Found) {
    let tokens = &file.lexed.tokens;
    let top = unit.children.get(&ModulePath::new()).map_or(&[][..], Vec::as_slice);
    let host = top.iter().position(|it| it.name == LOWEST_WITH_FEATURES);
    let core_module = |at: usize| {
        let module = &file.modules[at];
        let name = module.first()?;
        let own = top.iter().position(|declared| declared.name == *name);
        let deepest = match host.is_some_and(|host| own >= Some(host)) {
            true => module.len(),
            false => 1,
        };
        (!(1..=deepest).any(|depth| unit.requires_feature(&module[..depth]))).then_some(name)
    };
    let mut fault = |name: &str, line, what: &str| {
        let what = format!("`{name}` names `{what}`, which is forbidden in the core");
        found.insert((file.file.clone(), line, what));
    };
    for (at, line, path) in paths(tokens) {
        let Some(name) = core_module(at) else { continue };
        let path = path.join("::");
        let names = |entry: &&&str| path == **entry || path.starts_with(&format!("{entry}::"));
        if let Some(entry) = FORBIDDEN_IN_CORE.iter().find(names) {
            fault(name, line, entry);
        }
    }
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| !token.test) {
        let listed =
            token.kind == Kind::Word && FORBIDDEN_WORDS_IN_CORE.contains(&token.text.as_str());
        if let Some(name) = core_module(at).filter(|_| listed) {
            fault(name, token.first, &token.text);
        }
    }
}

/// Returns every path of production code: its start, the line of its last segment, and its
/// segments. A group gives one path for each of its members.
fn paths(tokens: &[Token]) -> Vec<(usize, usize, Vec<String>)> {
    let mut all = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let before = |back: usize| i.checked_sub(back).map(|j| &tokens[j]);
        let continues = before(1).is_some_and(|t| t.is_mark("::"))
            && before(2).is_some_and(|t| t.kind == Kind::Word || t.is_mark(">"));
        let used = before(1).is_some_and(|t| t.is_word("use") || t.is_word("crate"));
        let leads = tokens.get(i + 1).is_some_and(|t| t.is_mark("::")) || used;
        if token.kind == Kind::Word && leads && !continues && !token.test {
            let mut members = Vec::new();
            read_path(tokens, i, Vec::new(), &mut members);
            all.extend(members.into_iter().map(|(line, path)| (i, line, path)));
        }
    }
    all
}

/// Reads one path, or the tree of paths of a `use`, and returns where it ends.
fn read_path(
    tokens: &[Token],
    mut at: usize,
    mut path: Vec<String>,
    members: &mut Vec<(usize, Vec<String>)>,
) -> usize {
    let mut line = 0;
    while let Some(token) = tokens.get(at).filter(|t| t.kind == Kind::Word || t.is_mark("*")) {
        line = token.first;
        at += 1;
        // `self` in a group means the path before the group.
        if path.is_empty() || !token.is_word("self") {
            path.push(token.text.clone());
        }
        if !tokens.get(at).is_some_and(|t| t.is_mark("::")) {
            break;
        }
        at += 1;
    }
    if !tokens.get(at).is_some_and(|t| t.is_mark("{")) || !tokens[at - 1].is_mark("::") {
        members.push((line, path));
        return at;
    }
    at += 1;
    while let Some(token) = tokens.get(at).filter(|t| !t.is_mark("}")) {
        // A renamed member is `path as name`; the name is no path.
        let skip = token.is_mark(",") || token.is_mark("::");
        at = match (skip, token.is_word("as")) {
            (true, _) => at + 1,
            (_, true) => at + 2,
            _ => read_path(tokens, at, path.clone(), members).max(at + 1),
        };
    }
    at + 1
}

/// Resolves a path written in module `from` to the path from the crate; `None` if it starts neither
/// at the crate nor at an enclosing module.
fn resolve(from: &[String], path: &[String]) -> Option<ModulePath> {
    let (mut base, mut rest) = match path.split_first()? {
        (head, rest) if head == "crate" => (ModulePath::new(), rest),
        (head, rest) if head == "self" => (from.to_vec(), rest),
        (head, _) if head == "super" => (from.to_vec(), path),
        _ => return None,
    };
    while let Some((_, after)) = rest.split_first().filter(|(head, _)| *head == "super") {
        base.pop();
        rest = after;
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// Collects the `.rs` files under a folder of the repository.
fn collect(root: &Path, folder: &str, files: &mut Files) {
    let entries = std::fs::read_dir(root.join(folder)).expect("a folder of the repository");
    for entry in entries {
        let entry = entry.expect("an entry of a folder");
        let path = format!("{folder}/{}", entry.file_name().display());
        if entry.file_type().expect("the type of an entry").is_dir() {
            collect(root, &path, files);
        } else if path.ends_with(".rs") {
            let text = std::fs::read_to_string(entry.path()).expect("source in UTF-8");
            files.insert(path, text);
        }
    }
}

#[test]
fn source_tree_passes_all_tidy_rules() {
    let mut files = Files::new();
    for folder in ["src", "tests/it"] {
        collect(Path::new(env!("CARGO_MANIFEST_DIR")), folder, &mut files);
    }
    let found = findings(&files);
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));
}

/// Cargo has no pattern for a part of the crates: a new SDK crate would be optimised like
/// Outrigger's own code, which takes minutes.
#[test]
fn every_aws_sdk_crate_has_an_opt_level_in_every_profile() {
    let manifest: toml::Table = include_str!("../../Cargo.toml").parse().expect("TOML");
    let lock: toml::Table = include_str!("../../Cargo.lock").parse().expect("TOML");
    let packages = lock["package"].as_array().expect("packages");
    let names = packages.iter().filter_map(|own| own["name"].as_str());
    let generated: Vec<&str> = names.filter(|name| name.starts_with("aws-sdk-")).collect();
    assert!(!generated.is_empty());
    for profile in ["dev", "release", "dist"] {
        let levels = &manifest["profile"][profile]["package"];
        let has_none = |name: &&&str| levels.get(name).is_none();
        let without: Vec<_> = generated.iter().filter(has_none).collect();
        assert!(without.is_empty(), "profile {profile}: no level for {without:?}");
    }
}
