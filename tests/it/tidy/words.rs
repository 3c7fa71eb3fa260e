//! The words of the tree: terms of the field that file names must have, private words that
//! identifiers must not have, and words that make prose hard to read.

use std::collections::BTreeMap;
use std::path::Path;

use super::lexer::{Kind, lex};
use super::{Files, collect};

/// Terms that readers search for: the path of some file in `src` contains each.
const FIELD_TERMS: [&str; 66] = [
    "adoption",
    "affinity",
    "backoff",
    "batcher",
    "bootstrap",
    "bottlerocket",
    "budgets",
    "candidates",
    "capacity_buffers",
    "cluster_autoscaler",
    "cluster_health",
    "consolidation",
    "create_fleet",
    "daemon_overhead",
    "diagnose",
    "discovered_capacity",
    "disruption",
    "doctor",
    "drain",
    "drift",
    "dry_run",
    "eligibility",
    "emptiness",
    "event_recorder",
    "eviction",
    "exec_credential",
    "expiry",
    "explain",
    "fence",
    "garbage_collection",
    "iam_policy",
    "image_selection",
    "instance_profiles",
    "instance_type",
    "interruption",
    "invariants",
    "join_script",
    "karpenter",
    "kubelet_config",
    "launch_template",
    "leader_election",
    "lease",
    "lifecycle",
    "limits",
    "maintenance_window",
    "metric_definitions",
    "min_values",
    "node_class",
    "node_template",
    "nomination",
    "otlp",
    "overlay",
    "pdb",
    "pricing",
    "provisioning",
    "rate_limiter",
    "rbac",
    "registration",
    "repair",
    "reservation",
    "safeguards",
    "snapshot",
    "static_pools",
    "subnet_capacity",
    "taint",
    "topology",
];

/// Private words that identifiers had before docs/RENAMED.md.
const RETIRED: [&str; 24] = [
    "aboard", "bequeath", "brake", "brakes", "chores", "crew", "diary", "heir", "heirs", "herald",
    "keeper", "knock", "mate", "meddlers", "mishaps", "movers", "muster", "oust", "roster",
    "shelf", "shelves", "shields", "stir", "tenants",
];

/// Words that prose must not have, each with its current number in comments of `src`. Documents
/// have none. The numbers only ever decrease.
const BANNED: [(&str, usize); 14] = [
    ("anew", 0),
    ("anybody", 0),
    ("beside", 0),
    ("everybody", 0),
    ("hardly", 0),
    ("nobody", 0),
    ("said", 0),
    ("say", 0),
    ("somebody", 0),
    ("tell", 0),
    ("tells", 0),
    ("told", 0),
    ("whoever", 0),
    ("whom", 0),
];

/// Documents whose text is generated, quotes earlier names, or is a log.
const EXCEPTED: [&str; 5] = [
    "docs/BENCHMARKS.md",
    "docs/CAMPAIGNS.md",
    "docs/CHANGELOG.md",
    "docs/CONFORMANCE.md",
    "docs/RENAMED.md",
];

/// Returns the Rust files in these folders, by path.
pub(super) fn sources(folders: &[&str]) -> Files {
    let mut files = Files::new();
    for folder in folders {
        collect(Path::new(env!("CARGO_MANIFEST_DIR")), folder, &mut files);
    }
    files
}

/// Returns README and the documents, by path.
fn documents() -> Files {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/decisions"] {
        for entry in std::fs::read_dir(root.join(folder)).expect("a folder of the repository") {
            let name = entry.expect("an entry of a folder").file_name();
            paths.push(format!("{folder}/{}", name.display()));
        }
    }
    paths.retain(|own| own.ends_with(".md") && !EXCEPTED.contains(&own.as_str()));
    let read = |path: String| {
        let text = std::fs::read_to_string(root.join(&path)).expect("text in UTF-8");
        (path, text)
    };
    paths.into_iter().map(read).collect()
}

/// Returns the words of an identifier in lower case: those of `NodeClaim` and `node_claim` are
/// equal.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for letter in identifier.chars() {
        if letter == '_' || letter.is_uppercase() {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut().filter(|_| letter != '_') {
            last.extend(letter.to_lowercase());
        }
    }
    parts
}

/// Counts the banned words in a text.
fn banned(text: &str, counts: &mut BTreeMap<&'static str, usize>) {
    for word in text.split(|own: char| !own.is_alphabetic()) {
        let own = BANNED.iter().find(|(own, _)| word.eq_ignore_ascii_case(own));
        if let Some((own, _)) = own {
            *counts.entry(*own).or_default() += 1;
        }
    }
}

#[test]
fn each_field_term_is_in_a_file_path() {
    let files = sources(&["src"]);
    let missing: Vec<&&str> =
        FIELD_TERMS.iter().filter(|term| !files.keys().any(|path| path.contains(**term))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn no_identifier_has_a_retired_word() {
    let mut found = Vec::new();
    for (path, text) in sources(&["src"]) {
        for token in lex(&text).tokens {
            let is_retired = |own: &String| RETIRED.contains(&own.as_str());
            let is_word = token.kind == Kind::Word && !token.test;
            if is_word && parts(&token.text).iter().any(is_retired) {
                found.push(format!("{path}:{}: {}", token.first, token.text));
            }
        }
    }
    assert!(found.is_empty(), "see docs/RENAMED.md:\n{}", found.join("\n"));
}

#[test]
fn documents_have_no_banned_word() {
    for (path, text) in documents() {
        let mut counts = BTreeMap::new();
        banned(&text, &mut counts);
        assert!(counts.is_empty(), "{path}: {counts:?}");
    }
}

#[test]
fn comments_have_no_more_banned_words_than_before() {
    let mut counts = BTreeMap::new();
    for text in sources(&["src"]).values() {
        let production = text.split("#[cfg(test)]\nmod tests {").next();
        for (_, comment) in lex(production.unwrap_or_default()).comments {
            banned(&comment, &mut counts);
        }
    }
    let now = BANNED.map(|(word, _)| (word, counts.get(word).copied().unwrap_or_default()));
    let more = now.iter().zip(&BANNED).any(|(now, before)| now.1 > before.1);
    assert!(!more, "more than before: {now:?}");
    let fewer = now.iter().zip(&BANNED).any(|(now, before)| now.1 < before.1);
    assert!(!fewer, "fewer than before, lower the numbers: {now:?}");
}
