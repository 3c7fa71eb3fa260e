//! Arguments that several verbs share, and Terraform's single-dash spelling of long options.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Command};
use thiserror::Error;

use super::diagnostics;
use crate::config::Config;
#[cfg(not(feature = "daemon"))]
use crate::config::ParameterState;
use crate::config::diagnostic::Diagnostic;
use crate::host::files::{self, ConfigSources, DEFAULT_CONFIG};
#[cfg(feature = "daemon")]
use crate::runtime::config_source;
#[cfg(feature = "daemon")]
use crate::runtime::control::DEFAULT_SOCKET;

/// The control socket of the daemon.
#[cfg(feature = "daemon")]
#[derive(Args, Clone, Debug)]
pub(crate) struct SocketArguments {
    /// The daemon's control socket
    #[arg(
        long,
        value_name = "PATH",
        env = "OUTRIGGER_SOCKET",
        default_value = DEFAULT_SOCKET
    )]
    pub(crate) socket: PathBuf,
}

/// The configuration files and the values of their variables.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConfigArguments {
    /// A configuration file or directory; can be given several times
    #[arg(
        long = "config",
        value_name = "PATH",
        env = "OUTRIGGER_CONFIG",
        value_delimiter = ':',
        default_value = DEFAULT_CONFIG
    )]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) variables: VariableArguments,
}

impl ConfigArguments {
    pub(crate) fn config_sources(&self) -> ConfigSources {
        self.variables.config_sources(self.paths.clone())
    }

    /// Reads the configuration in the same way as the daemon. Returns `None` after printing the
    /// problems of an invalid configuration.
    #[cfg(feature = "daemon")]
    pub(crate) fn read_config(&self, colour: bool) -> anyhow::Result<Option<Config>> {
        let read = super::wait_for(config_source::load_config(&self.config_sources()))?;
        Ok(valid_or_printed(read, colour))
    }

    /// Reads the configuration. A value that has to be read from AWS is an error in this build.
    /// Returns `None` after printing the problems of an invalid configuration.
    #[cfg(not(feature = "daemon"))]
    pub(crate) fn read_config(&self, colour: bool) -> anyhow::Result<Option<Config>> {
        let read = files::read_sources(&self.config_sources()).build_config(&|_| {
            ParameterState::Unreadable("this build was compiled without AWS support".to_owned())
        });
        Ok(valid_or_printed(read, colour))
    }

    /// Reads the configuration without calling AWS.
    pub(crate) fn read_offline(&self, colour: bool) -> Option<Config> {
        valid_or_printed(files::load_config(&self.config_sources()), colour)
    }
}

fn valid_or_printed(read: Result<Config, Vec<Diagnostic>>, colour: bool) -> Option<Config> {
    read.inspect_err(|problems| diagnostics::print_problems(problems, colour)).ok()
}

/// Values of variables. Later values override earlier ones. `--var` overrides `--var-file`, and
/// `--var-file` overrides the environment.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct VariableArguments {
    /// Set a variable of the configuration (also as OUTRIGGER_VAR_NAME=VALUE in the environment)
    #[arg(long = "var", value_name = "NAME=VALUE", value_parser = parse_assignment)]
    pub(crate) set: Vec<(String, String)>,
    /// Set variables of the configuration from a file
    #[arg(long = "var-file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

impl VariableArguments {
    /// Combines these variables with the paths of a configuration.
    pub(crate) fn config_sources(&self, paths: Vec<PathBuf>) -> ConfigSources {
        ConfigSources { paths, variable_files: self.files.clone(), variables: self.set.clone() }
    }
}

/// An argument that is not written in the expected form, with an example of this form.
#[derive(Debug, Error)]
#[error("write it like {0}")]
pub(crate) struct MalformedArgument(pub(crate) &'static str);

fn parse_assignment(text: &str) -> Result<(String, String), MalformedArgument> {
    let (name, value) = text.split_once('=').ok_or(MalformedArgument("region=eu-west-1"))?;
    Ok((name.trim().to_owned(), value.to_owned()))
}

/// Returns whether `NO_COLOR` is set: <https://no-color.org>.
#[expect(clippy::disallowed_methods, reason = "NO_COLOR is the convention of all programs")]
pub(crate) fn is_colour_unwanted() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Returns the long options of all verbs, which Terraform users write with one dash. This is
/// unambiguous because no verb has short options of several letters.
pub(crate) fn long_options(command: &Command) -> BTreeSet<String> {
    command
        .get_arguments()
        .filter_map(|argument| argument.get_long().map(str::to_owned))
        .chain(command.get_subcommands().flat_map(long_options))
        .collect()
}

/// Adds the second dash to long options that are written with one dash.
pub(crate) fn with_two_dashes(
    arguments: impl Iterator<Item = OsString>,
    long: &BTreeSet<String>,
) -> Vec<OsString> {
    let mut literal = false;
    arguments
        .map(|argument| {
            literal |= argument == "--";
            let Some(text) = argument.to_str().filter(|_| !literal) else {
                return argument;
            };
            let name = text.strip_prefix('-').map(|it| it.split('=').next().unwrap_or(it));
            match name {
                Some(name) if long.contains(name) => OsString::from(format!("-{text}")),
                _ => argument,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::{long_options, with_two_dashes};
    use crate::cli::CommandLine;

    #[test]
    fn terraform_style_single_dash_options_are_accepted() {
        let mut command = CommandLine::command();
        command.build();
        let long = long_options(&command);
        let check = |given: &str, expect: &str| {
            let words = given.split(' ').map(OsString::from);
            assert_eq!(with_two_dashes(words, &long).join(" ".as_ref()), OsString::from(expect));
        };
        check("validate -quiet -help", "validate --quiet --help");
        check("plan -json -var a=-b -var=c=d", "plan --json --var a=-b --var=c=d");
        check("plan --cluster-state - -V", "plan --cluster-state - -V");
        check("simulate -- -json", "simulate -- -json");
    }
}
