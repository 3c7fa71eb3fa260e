//! The verbs that this build does not include, and the Cargo features that add them.

/// The features that this build was compiled with.
pub(super) const COMPILED: &[&str] = &[
    "cli",
    #[cfg(feature = "daemon")]
    "daemon",
    #[cfg(feature = "aws")]
    "aws",
    #[cfg(feature = "otlp")]
    "otlp",
];

/// The command that builds a binary with every verb.
pub(super) const EVERY_VERB: &str = "cargo build --release --features aws builds all verbs; the \
                                     packages in docs/INSTALL.md contain such a build";

/// Verbs that need the feature `daemon`.
const OF_THE_DAEMON: [&str; 9] =
    ["doctor", "pause", "release", "reload", "resume", "run", "simulated-cloud", "status", "top"];

/// Verbs that need the feature `aws`.
const OF_AWS: [&str; 1] = ["token"];

/// Returns the verbs that this build does not include, each with the feature that adds it.
fn missing_verbs() -> impl Iterator<Item = (&'static str, &'static str)> {
    let daemon = OF_THE_DAEMON.map(|verb| (verb, "daemon"));
    let aws = OF_AWS.map(|verb| (verb, "aws"));
    let all = daemon.into_iter().chain(aws);
    all.filter(|(_, feature)| !COMPILED.contains(feature))
}

/// Returns the Cargo feature that would add the verb to this build. Returns `None` for a verb that
/// this build includes, and for a word that is not a verb.
pub(super) fn missing_feature(verb: &str) -> Option<&'static str> {
    missing_verbs().find_map(|(missing_verb, feature)| (missing_verb == verb).then_some(feature))
}

/// The last lines of `--help`: the verbs that this build does not include.
pub(super) fn missing_verbs_help() -> Option<String> {
    let verbs: Vec<&str> = missing_verbs().map(|(verb, _)| verb).collect();
    let verbs = verbs.join(", ");
    (!verbs.is_empty()).then(|| format!("Not in this build: {verbs}.\n{EVERY_VERB}."))
}

/// The error for an operation that this build does not include.
#[cfg(not(feature = "daemon"))]
pub(super) fn unsupported_operation(what: &str, instead: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{what}: this build was compiled without the feature `daemon`\n  = help: {instead}; \
         {EVERY_VERB}"
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{OF_AWS, OF_THE_DAEMON, missing_feature, missing_verbs_help};
    use crate::cli::CommandLine;

    #[test]
    fn each_verb_exists_or_is_listed_as_missing() {
        let command = CommandLine::command();
        let exists = |verb: &str| command.find_subcommand(verb).is_some();
        for verb in OF_THE_DAEMON.into_iter().chain(OF_AWS) {
            assert_ne!(exists(verb), missing_feature(verb).is_some(), "{verb}");
            let is_listed = missing_verbs_help().is_some_and(|help| help.contains(verb));
            assert_eq!(is_listed, missing_feature(verb).is_some(), "{verb}");
        }
        for verb in ["simulate", "validate", "fmt", "plan", "import", "export"] {
            assert!(exists(verb) && missing_feature(verb).is_none(), "{verb}");
        }
        assert_eq!(missing_feature("nonsense"), None);
    }
}
