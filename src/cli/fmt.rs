//! `outrigger fmt`: rewrites configuration files in canonical format, with the options of
//! `terraform fmt`.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use similar::TextDiff;

use super::{diagnostics, stdin};
use crate::config::SourceFile;
use crate::config::diagnostic::Diagnostic;
use crate::config::format::format;
use crate::host::files::{self, FilesError};

/// Exit codes, as in Terraform: the first if `--check` found files to change, the second if a file
/// is unreadable or not HCL.
const CHANGES: u8 = 3;
const BROKEN: u8 = 2;

/// Defines the arguments: the paths, and options that take a bool as in Terraform, each with its
/// default.
macro_rules! fmt_arguments {
    ($($(#[$about:meta])* $name:ident = $default:literal;)+) => {
        #[derive(Args, Debug)]
        pub(crate) struct FmtArgs {
            /// Files and directories to format; `-` reads standard input
            #[arg(value_name = "PATH", default_value = ".")]
            paths: Vec<PathBuf>,
            $($(#[$about])*
            #[arg(long, value_name = "BOOL")]
            #[arg(default_value = $default, default_missing_value = "true")]
            #[arg(num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
            #[arg(value_parser = BoolishValueParser::new())]
            $name: bool,)+
        }
    };
}

fmt_arguments! {
    /// Write nothing, and exit with status 3 if any file needs formatting
    check = "false";
    /// Show the changes as a diff
    diff = "false";
    /// Also format files in subdirectories
    recursive = "false";
    /// List the files that change
    list = "true";
    /// Write the formatted files
    write = "true";
}

pub(crate) fn execute(arguments: &FmtArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let stdin = arguments.paths.iter().any(|path| path == Path::new("-"));
    if stdin && arguments.paths.len() > 1 {
        bail!("give either files or -, which reads standard input");
    }
    let mut run = Run {
        list: (arguments.list || arguments.check) && !stdin,
        write: arguments.write && !arguments.check && !stdin,
        diff: arguments.diff,
        colour,
        said: String::new(),
        changes: false,
        broken: false,
    };
    if stdin {
        run.format_source(None, &stdin::read_config_text()?)?;
    } else {
        for path in &arguments.paths {
            let (found, faults) = files::native_sources(path, arguments.recursive);
            faults.iter().for_each(|fault| run.report_problems(&[fault.to_diagnostic()]));
            for path in found {
                match files::read_limited(&path) {
                    Ok(text) => run.format_source(Some(&path), &text)?,
                    Err(fault) => run.report_problems(&[fault.to_diagnostic()]),
                }
            }
        }
    }
    // Printed last: a closed pipe must not prevent the files from being written.
    if !arguments.check || (arguments.list && !stdin) {
        io::stdout().write_all(run.said.as_bytes())?;
    }
    Ok(match run {
        Run { broken: true, .. } => ExitCode::from(BROKEN),
        Run { changes: true, .. } if arguments.check => ExitCode::from(CHANGES),
        _ => ExitCode::SUCCESS,
    })
}

/// The options of a run and its results so far.
struct Run {
    list: bool,
    write: bool,
    diff: bool,
    colour: bool,
    said: String,
    changes: bool,
    broken: bool,
}

impl Run {
    fn report_problems(&mut self, problems: &[Diagnostic]) {
        self.broken = true;
        diagnostics::print_problems(problems, self.colour);
    }

    /// Formats one file, or standard input.
    fn format_source(&mut self, path: Option<&Path>, text: &str) -> anyhow::Result<()> {
        let name = path.map(|path| path.strip_prefix(".").unwrap_or(path));
        let name = name.map_or("<stdin>".into(), |path| path.display().to_string());
        let formatted = match format(&SourceFile::new(&*name, text)) {
            Ok(formatted) => formatted,
            Err(problems) => {
                self.report_problems(&problems);
                return Ok(());
            }
        };
        if formatted != text {
            self.changes = true;
            if self.list {
                writeln!(self.said, "{name}")?;
            }
            if let Some(path) = path.filter(|_| self.write)
                && let Err(source) = rewrite_file(path, text, &formatted)
            {
                let path = path.to_owned();
                self.report_problems(&[FilesError::Write { path, source }.to_diagnostic()]);
            }
            if self.diff {
                let diff = TextDiff::from_lines(text, &formatted);
                let (old, new) = (format!("old/{name}"), format!("new/{name}"));
                write!(self.said, "{}", diff.unified_diff().header(&old, &new))?;
            }
        }
        if !self.list && !self.write && !self.diff {
            self.said.push_str(&formatted);
        }
        Ok(())
    }
}

/// Writes in place, like Terraform, to keep owner, mode and links. The file is truncated only after
/// the write, so that a full disk does not lose the old content.
fn rewrite_file(path: &Path, old: &str, new: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    write_content(&file, new).map_err(|error| match write_content(&file, old) {
        Ok(()) => error,
        Err(again) => {
            let why = format!("{error}; the previous content is lost: {again}");
            io::Error::new(error.kind(), why)
        }
    })
}

/// Overwrites the content of an open file, and then truncates the file to the new length.
fn write_content(file: &File, text: &str) -> io::Result<()> {
    file.write_all_at(text.as_bytes(), 0)?;
    file.set_len(text.len() as u64)
}
