//! `outrigger fmt`: files of configuration in their canonical form, with `terraform fmt`'s options.
//! It must not know what that form is.

use std::fmt::Write as _;
use std::fs::OpenOptions;
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

/// Something would be changed, with `--check`; something cannot be read, or is no HCL. The numbers
/// are Terraform's.
const CHANGES: u8 = 3;
const BROKEN: u8 = 2;

#[derive(Args, Debug)]
pub(crate) struct FmtArgs {
    /// Files and directories; `-` is standard input
    #[arg(value_name = "PATH", default_value = ".")]
    paths: Vec<PathBuf>,
    /// Write nothing, and end with 3 where something would be changed
    #[arg(
        long,
        value_name = "BOOL",
        default_value = "false",
        default_missing_value = "true"
    )]
    #[arg(num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    check: bool,
    /// Show what changes
    #[arg(
        long,
        value_name = "BOOL",
        default_value = "false",
        default_missing_value = "true"
    )]
    #[arg(num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    diff: bool,
    /// Directories within directories as well
    #[arg(
        long,
        value_name = "BOOL",
        default_value = "false",
        default_missing_value = "true"
    )]
    #[arg(num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    recursive: bool,
    /// Name the files that change
    #[arg(
        long,
        value_name = "BOOL",
        default_value = "true",
        default_missing_value = "true"
    )]
    #[arg(num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    list: bool,
    /// Write the files
    #[arg(
        long,
        value_name = "BOOL",
        default_value = "true",
        default_missing_value = "true"
    )]
    #[arg(num_args = 0..=1, require_equals = true, action = ArgAction::Set)]
    #[arg(value_parser = BoolishValueParser::new())]
    write: bool,
}

pub(crate) fn execute(arguments: &FmtArgs, colour: bool) -> anyhow::Result<ExitCode> {
    let stdin = arguments.paths.iter().any(|path| path == Path::new("-"));
    if stdin && arguments.paths.len() > 1 {
        bail!("name either files or -, which is standard input");
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
        run.take(None, &stdin::read()?)?;
    } else {
        for path in &arguments.paths {
            let (found, faults) = files::native_sources(path, arguments.recursive);
            faults
                .iter()
                .for_each(|fault| run.broke(&[fault.problem()]));
            for path in found {
                match files::read_limited(&path) {
                    Ok(text) => run.take(Some(&path), &text)?,
                    Err(fault) => run.broke(&[fault.problem()]),
                }
            }
        }
    }
    // Only now: nobody may listen any more, and the files are written all the same.
    if !arguments.check || (arguments.list && !stdin) {
        io::stdout().write_all(run.said.as_bytes())?;
    }
    Ok(match run {
        Run { broken: true, .. } => ExitCode::from(BROKEN),
        Run { changes: true, .. } if arguments.check => ExitCode::from(CHANGES),
        _ => ExitCode::SUCCESS,
    })
}

/// What is done with each file, and what has become of them so far.
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
    fn broke(&mut self, problems: &[Diagnostic]) {
        self.broken = true;
        diagnostics::show(problems, self.colour);
    }

    /// One text, of a file or of standard input.
    fn take(&mut self, path: Option<&Path>, text: &str) -> anyhow::Result<()> {
        let name = path.map(|path| path.strip_prefix(".").unwrap_or(path));
        let name = name.map_or("<stdin>".into(), |path| path.display().to_string());
        let formatted = match format(&SourceFile::new(&*name, text)) {
            Ok(formatted) => formatted,
            Err(problems) => {
                self.broke(&problems);
                return Ok(());
            }
        };
        if formatted != text {
            self.changes = true;
            if self.list {
                writeln!(self.said, "{name}")?;
            }
            if let Some(path) = path.filter(|_| self.write)
                && let Err(source) = rewrite(path, text, &formatted)
            {
                let path = path.to_owned();
                self.broke(&[FilesError::Write { path, source }.problem()]);
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

/// Writes in place, as Terraform does: owner, mode and links stay what they are. The file is not
/// cut before it is written: where the new text has no room, the old one still has.
fn rewrite(path: &Path, old: &str, new: &str) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let fill = |text: &str| {
        file.write_all_at(text.as_bytes(), 0)?;
        file.set_len(text.len() as u64)
    };
    fill(new).map_err(|error| match fill(old) {
        Ok(()) => error,
        Err(again) => {
            let why = format!("{error}; what was there before is lost: {again}");
            io::Error::new(error.kind(), why)
        }
    })
}
