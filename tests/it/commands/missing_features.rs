//! Commands that a build lacks: the message names the build that has them, with the exit code of
//! invalid arguments.

use crate::binary::run;

/// Commands of the daemon, and their exit code for invalid arguments. A service manager must not
/// restart `run`. For some commands 2 is the code of a finding.
const DAEMON_COMMANDS: [(&str, i32); 9] = [
    ("doctor", 1),
    ("pause", 2),
    ("release", 2),
    ("reload", 2),
    ("resume", 2),
    ("run", 78),
    ("simulated-cloud", 2),
    ("status", 1),
    ("top", 1),
];

/// Returns the exit code and stderr.
fn run_refused(arguments: &[&str]) -> (Option<i32>, String) {
    let output = run(arguments, "");
    assert_eq!(output.stdout, b"", "{arguments:?}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), errors)
}

#[test]
fn daemon_command_exists_or_names_the_required_features() {
    for (verb, expect) in DAEMON_COMMANDS {
        if cfg!(feature = "daemon") {
            let output = run(&[verb, "--help"], "");
            assert_eq!(output.status.code(), Some(0), "{verb}");
            continue;
        }
        for arguments in [&[verb, "--config", "x"][..], &["help", verb]] {
            let (code, errors) = run_refused(arguments);
            assert_eq!(code, Some(expect), "{arguments:?}");
            let lack = format!("does not include the verb \"{verb}\"");
            assert!(errors.contains(&lack), "{errors}");
            assert!(errors.contains("--features aws"), "{errors}");
        }
    }
    assert_eq!(run(&["nonsense"], "").status.code(), Some(2));
}

#[test]
#[cfg(not(feature = "daemon"))]
fn live_cluster_command_names_the_offline_alternative() {
    let dir = tempfile::TempDir::new().expect("a directory");
    let text = "outrigger { installation = \"it\" }\n\
                cluster \"lab\" {\n  simulated {}\n  kubeconfig { path = \"/nowhere\" }\n}\n";
    std::fs::write(dir.path().join("outrigger.hcl"), text).expect("written");
    let config = dir.path().to_str().expect("a readable path");
    let cases: [(&[&str], &str); 3] = [
        (&["plan", "--config", config], "--cluster-state"),
        (&["explain", "pod", "default/web", "--config", config], "--cluster-state"),
        (&["import", "--from-cluster", "--kubeconfig", "/nowhere"], "kubectl"),
    ];
    for (arguments, instead) in cases {
        let (code, errors) = run_refused(arguments);
        assert_eq!(code, Some(1), "{errors}");
        let words = [instead, "feature `daemon`", "--features aws"];
        assert!(words.iter().all(|own| errors.contains(own)), "{errors}");
    }
}

#[test]
fn version_lists_the_build_features() {
    let output = run(&["version", "--json"], "");
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let features = version["features"].as_array().expect("a list");
    assert!(features.contains(&"cli".into()));
    assert_eq!(features.contains(&"daemon".into()), cfg!(feature = "daemon"));
}
