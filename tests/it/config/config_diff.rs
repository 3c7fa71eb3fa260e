//! Differences between two configurations, as a reload reports them.

use std::collections::BTreeMap;

use outrigger::config::{Config, Inputs, SourceFile, load};

fn read(text: &str, secret: &str) -> Config {
    let inputs = Inputs {
        secrets: BTreeMap::from([("password".to_owned(), secret.to_owned())]),
        ..Inputs::default()
    };
    load(&[SourceFile::new("main.hcl", text)], &inputs).expect("a configuration")
}

const OLD: &str = r#"
cluster "fleet" {
  for_each = ["a", "b"]
  name     = each.value
  kubeconfig {
    path = "/etc/kubeconfig-${each.key}"
    context = "platform"
  }
  simulated {
    catalog = secret("password")
  }
}

pool "general" {
  limits = { cpu = 10 }
  disruption {
    consolidate_after = "30s"
    budget {
      nodes = "10%"
    }
    budget {
      nodes = 3
    }
  }
}

pool "old" {
}
"#;

#[test]
fn config_diff_lists_each_changed_argument_once() {
    let new = OLD
        .replace(r#"["a", "b"]"#, r#"["b", "c"]"#)
        .replace("cpu = 10", "cpu = 20")
        .replace(r#""30s""#, r#""5m""#)
        .replace("nodes = 3", "nodes = 4")
        .replace(r#"pool "old""#, r#"pool "new""#)
        .replace(r#""platform""#, &format!("{:?}", "x".repeat(200)));
    let changes = read(OLD, "one").written.changes_to(&read(&new, "two").written);
    let long = format!("\"{}…", "x".repeat(99));
    let expect = [
        r#"- cluster "fleet" ["a"]"#.to_owned(),
        format!(r#"~ cluster "fleet" ["b"], kubeconfig: context = "platform" → {long}"#),
        r#"~ cluster "fleet" ["b"], simulated: catalog = (sensitive) → (sensitive)"#.to_owned(),
        r#"+ cluster "fleet" ["c"]"#.to_owned(),
        r#"+ cluster "fleet" ["c"]: name = "c""#.to_owned(),
        r#"+ cluster "fleet" ["c"], kubeconfig"#.to_owned(),
        format!(r#"+ cluster "fleet" ["c"], kubeconfig: context = {long}"#),
        r#"+ cluster "fleet" ["c"], kubeconfig: path = "/etc/kubeconfig-c""#.to_owned(),
        r#"+ cluster "fleet" ["c"], simulated"#.to_owned(),
        r#"+ cluster "fleet" ["c"], simulated: catalog = (sensitive)"#.to_owned(),
        r#"~ pool "general": limits = {"cpu":10} → {"cpu":20}"#.to_owned(),
        r#"~ pool "general", disruption: consolidate_after = "30s" → "5m""#.to_owned(),
        r#"~ pool "general", disruption, budget (2): nodes = 3 → 4"#.to_owned(),
        r#"+ pool "new""#.to_owned(),
        r#"- pool "old""#.to_owned(),
    ];
    assert_eq!(changes, expect);
}

#[test]
fn config_diff_ignores_comments_and_equal_values() {
    let moved = format!("# a comment\n{}", OLD.replace("cpu = 10", "cpu = 5 + 5"));
    let changes = read(OLD, "one").written.changes_to(&read(&moved, "one").written);
    assert_eq!(changes, Vec::<String>::new());
}

#[test]
fn config_hash_is_stable_across_builds() {
    let print = |text: &str, secret: &str| read(text, secret).written.config_hash();
    // Hosts compare the hash, and their daemons may be built by different compilers: it must never
    // change.
    assert_eq!(print(OLD, "one"), 3_507_778_974);
    assert_ne!(print(OLD, "one"), print(OLD, "two"));
    assert_ne!(print(OLD, "one"), print(&OLD.replace("nodes = 3", "nodes = 4"), "one"));
}
