//! Properties: an exported configuration is imported unchanged, and every input is handled.

use outrigger::config::diagnostic::render_all;
use outrigger::config::{Config, Inputs, SourceFile, load};
use outrigger::migrate::karpenter::DroppedField;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq};
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;
use proptest::{prop_assume, proptest};

use super::random_config::configuration;
use super::{CLUSTER, exported, imported, loaded, name_of, read};

/// Loads HCL. Returns `None` if it is invalid.
pub(crate) fn clusters(hcl: &str) -> Option<Config> {
    let files = [SourceFile::new("main.hcl", hcl), SourceFile::new("cluster.hcl", CLUSTER)];
    load(&files, &Inputs::default()).ok()
}

proptest! {
    #[test]
    fn exported_configuration_is_imported_unchanged(hcl in configuration()) {
        // A buffer of a static pool is rejected. Other generated configurations are valid (see
        // below).
        let config = clusters(&hcl);
        prop_assume!(config.is_some());
        let config = config.unwrap_or_default();
        let out = exported(&config);
        let (missing, dropped): (Vec<&DroppedField>, Vec<&DroppedField>) =
            out.losses.iter().partition(|own| own.missing);
        prop_assert!(dropped.is_empty(), "{:?}\n{}", dropped, hcl);
        let back = imported(&out.text).expect("what was exported");
        // The import reports one placeholder for each missing value, and nothing else.
        let blank = |own: &&DroppedField| own.why.starts_with("it contains a placeholder");
        let (blank, lost): (Vec<&DroppedField>, Vec<_>) = back.losses.iter().partition(blank);
        prop_assert!(lost.is_empty(), "{:?}\n{}", lost, out.text);
        prop_assert_eq!(blank.len(), missing.len(), "{:?}\n{}", blank, out.text);
        let again = loaded(&back.text());
        prop_assert_eq!(&again.clusters, &config.clusters, "{}\n{}", out.text, back.text());
        prop_assert_eq!(exported(&again).text, out.text);
    }

    #[test]
    fn altered_objects_are_imported_as_valid_hcl_or_rejected(text in altered_objects()) {
        if let Ok(back) = imported(&text) {
            // The imported configuration is valid.
            loaded(&back.text());
        }
    }
}

/// Most generated configurations are valid, so the property test above is meaningful.
#[test]
fn generated_configurations_are_valid() {
    const GENERATED: usize = 60;
    let mut runner = TestRunner::deterministic();
    let mut refused = Vec::new();
    for _ in 0..GENERATED {
        let tree = configuration().new_tree(&mut runner).expect("a configuration");
        let hcl = proptest::strategy::ValueTree::current(&tree);
        let files =
            [SourceFile::new("main.hcl", hcl.clone()), SourceFile::new("cluster.hcl", CLUSTER)];
        if let Err(problems) = load(&files, &Inputs::default()) {
            refused.push(render_all(&problems));
        }
    }
    let known =
        |own: &&String| own.contains("is static: Outrigger launches no nodes in it for buffers");
    let unknown: Vec<&String> = refused.iter().filter(|own| !known(own)).collect();
    assert!(unknown.is_empty(), "{}", unknown[0]);
    assert!(refused.len() * 3 < GENERATED, "{} refused", refused.len());
}

/// Returns cases of the import tests with removed, repeated and replaced lines.
fn altered_objects() -> impl Strategy<Value = String> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/karpenter/import");
    let entries = std::fs::read_dir(folder).expect("the folder of cases");
    let mut paths: Vec<std::path::PathBuf> =
        entries.map(|own| own.expect("an entry").path()).collect();
    paths.retain(|path| !name_of(path).ends_with(".snap"));
    paths.sort();
    let texts: Vec<String> = paths.iter().map(|path| read(path)).collect();
    let pieces = select(vec![
        "null",
        "[]",
        "{}",
        "-1",
        "\"\"",
        "1e300",
        "{a: {a: {a: [1]}}}",
        "\"${x}\"",
        "a\u{0}b",
        "&a",
        "Never",
        "[~, {}]",
        "9223372036854775808",
        "'a/b/c'",
        "false",
    ]);
    let change = (any::<Index>(), 0_u8..4, pieces);
    (select(texts), vec(change, 1..6)).prop_map(|(text, changes)| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        for (place, what, piece) in changes {
            let at = place.index(lines.len());
            match (what, lines[at].split_once(": ")) {
                (0, _) if lines.len() > 1 => drop(lines.remove(at)),
                (1, _) => lines.insert(at, lines[at].clone()),
                (_, Some((key, _))) => lines[at] = format!("{key}: {piece}"),
                _ => {}
            }
        }
        lines.join("\n")
    })
}
