//! Where the configuration in force comes from: files, and parameters that change by themselves.
//! It must not know what any of it says, nor how a parameter is asked for.
//!
//! What a parameter held last is kept in the daemon's state directory: a daemon that starts while
//! AWS cannot be asked goes on with it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt, join_all};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout};

use crate::config::problem::Problem;
use crate::config::settings::{Parameter, Polled};
use crate::config::{Config, Held};
use crate::shell::files::{self, Texts, Untold, Wanted};
use crate::shell::{clock, text};

/// Time for one parameter to be told.
const LIMIT: Duration = Duration::from_secs(30);

/// What parameters held last, in the state directory.
const COPY: &str = "parameters.json";

/// The configuration, live parameters and all; nothing is kept.
pub(crate) async fn load(wanted: &Wanted) -> Result<Config, Vec<Problem>> {
    Origin::new(wanted.clone(), None).read().await
}

/// Asks for a parameter.
type Ask = Box<dyn Fn(Parameter) -> BoxFuture<'static, Result<String, Untold>>>;

/// Files and parameters that make a configuration.
pub(crate) struct Origin {
    wanted: Wanted,
    ask: Ask,
    /// Where the last values are kept.
    copy: Option<PathBuf>,
    /// What the configuration in force was made of.
    texts: Texts,
    held: BTreeMap<Parameter, Held>,
    /// When which parameter is looked at again.
    due: Vec<(Polled, Instant)>,
    /// Whether the last configuration failed for want of an answer.
    untold: bool,
}

impl Origin {
    /// Nothing is read yet.
    pub(crate) fn new(wanted: Wanted, state_directory: Option<&Path>) -> Self {
        Self::asking(
            wanted,
            state_directory,
            Box::new(|own| parameter(own).boxed()),
        )
    }

    fn asking(wanted: Wanted, state_directory: Option<&Path>, ask: Ask) -> Self {
        Self {
            wanted,
            ask,
            copy: state_directory.map(|own| own.join(COPY)),
            texts: Texts::default(),
            held: BTreeMap::new(),
            due: Vec::new(),
            untold: false,
        }
    }

    /// Whether what failed last may pass by itself.
    pub(crate) fn may_pass(&self) -> bool {
        self.untold
    }

    /// The configuration as it is now. Where it cannot be one, the last stays what it was.
    pub(crate) async fn read(&mut self) -> Result<Config, Vec<Problem>> {
        self.untold = false;
        let texts = files::read(&self.wanted);
        let asked = RefCell::new(BTreeSet::new());
        let first = texts.config(&|own| {
            asked.borrow_mut().insert(own.clone());
            Held::Unasked
        });
        let asked = asked.into_inner();
        let mut held = BTreeMap::new();
        let config = match asked.is_empty() {
            true => first,
            false => {
                held = self.told(asked).await;
                texts.config(&|own| known(&held, own))
            }
        }?;
        self.texts = texts;
        self.held = held;
        self.keep(&config);
        Ok(config)
    }

    /// Waits until a parameter holds something else; then the configuration is that of the files
    /// as they were read last, or cannot be one.
    pub(crate) async fn changed(&mut self) -> Result<Config, Vec<Problem>> {
        loop {
            let Some(next) = self.due.iter().map(|(_, due)| *due).min() else {
                return pending().await;
            };
            sleep_until(next).await;
            let is_due = |(own, due): &(Polled, Instant)| (*due <= next).then(|| own.clone());
            let polled: Vec<Polled> = self.due.iter().filter_map(is_due).collect();
            let asked = polled.into_iter().map(|own| own.parameter).collect();
            let held = self.told(asked).await;
            let now = clock::monotonic();
            for (own, due) in self.due.iter_mut().filter(|(_, due)| *due <= next) {
                *due = again(own, now).unwrap_or(now + LIMIT);
            }
            let mut news = false;
            for (parameter, new) in held {
                match &new {
                    Held::Text(_) => {
                        news |= self.held.insert(parameter, new.clone()).as_ref() != Some(&new);
                    }
                    Held::Unreadable(why) => {
                        let parameter = parameter.name;
                        tracing::warn!(parameter, why, "what it held last stays in force");
                    }
                    Held::Unasked => {}
                }
            }
            if news {
                let config = self.texts.config(&|own| known(&self.held, own))?;
                self.keep(&config);
                return Ok(config);
            }
        }
    }

    /// What comes of a configuration that is one.
    fn keep(&mut self, config: &Config) {
        let now = clock::monotonic();
        let due = |own: &Polled| Some((own.clone(), again(own, now)?));
        self.due = config.polled.iter().filter_map(due).collect();
        if let (Some(path), false) = (&self.copy, self.held.is_empty())
            && let Err(error) = save(path, &self.held)
        {
            let (path, why) = (path.display(), text::chain(&error));
            tracing::warn!(%path, why, "what parameters hold is not kept for a start without AWS");
        }
    }

    /// What parameters hold, each within its time.
    async fn told(&mut self, asked: BTreeSet<Parameter>) -> BTreeMap<Parameter, Held> {
        let late = || Untold {
            may_pass: true,
            why: format!("no answer within {} s", LIMIT.as_secs()),
        };
        let tell = async |own: Parameter| {
            let told = timeout(LIMIT, (self.ask)(own.clone())).await;
            (own, told.unwrap_or_else(|_| Err(late())))
        };
        let all = join_all(asked.into_iter().map(tell)).await;
        let mut held = BTreeMap::new();
        for (own, told) in all {
            let known = match told {
                Ok(text) => Held::Text(text),
                Err(untold) => {
                    let last = untold.may_pass.then(|| self.last(&own)).flatten();
                    self.untold |= untold.may_pass && last.is_none();
                    match last {
                        Some(last) => {
                            let (parameter, why) = (&own.name, &untold.why);
                            tracing::warn!(parameter, why, "going by what it held last");
                            Held::Text(last)
                        }
                        None => Held::Unreadable(untold.why),
                    }
                }
            };
            held.insert(own, known);
        }
        held
    }

    /// What a parameter held when it was told last.
    fn last(&self, parameter: &Parameter) -> Option<String> {
        if let Some(Held::Text(text)) = self.held.get(parameter) {
            return Some(text.clone());
        }
        let kept: Value =
            serde_json::from_str(&files::read_limited(self.copy.as_ref()?).ok()?).ok()?;
        let is_it = |own: &&Value| {
            own["name"] == parameter.name.as_str() && own["region"] == json!(parameter.region)
        };
        let own = kept.as_array()?.iter().find(is_it)?;
        Some(own["value"].as_str()?.to_owned())
    }
}

fn known(held: &BTreeMap<Parameter, Held>, parameter: &Parameter) -> Held {
    held.get(parameter).cloned().unwrap_or(Held::Unasked)
}

/// When a parameter is looked at next.
fn again(polled: &Polled, now: Instant) -> Option<Instant> {
    Some(now + polled.every?.unsigned_abs())
}

/// Writes what parameters hold beside the file and then in its place: it is never half there.
fn save(path: &Path, held: &BTreeMap<Parameter, Held>) -> io::Result<()> {
    let text = |(parameter, own): (&Parameter, &Held)| match own {
        Held::Text(value) => Some(json!({
            "name": parameter.name,
            "region": parameter.region,
            "value": value,
        })),
        _ => None,
    };
    let all: Vec<Value> = held.iter().filter_map(text).collect();
    let beside = path.with_extension("new");
    fs::write(&beside, Value::Array(all).to_string())?;
    fs::rename(&beside, path)
}

#[cfg(feature = "aws")]
async fn parameter(parameter: Parameter) -> Result<String, Untold> {
    crate::shell::aws::outputs::parameter(&parameter).await
}

#[cfg(not(feature = "aws"))]
async fn parameter(_: Parameter) -> Result<String, Untold> {
    Err(Untold {
        may_pass: false,
        why: "this build cannot ask AWS".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::fs;
    use std::path::Path;
    use std::sync::{Arc, Mutex, PoisonError};
    use std::time::Duration;

    use futures::FutureExt;
    use tempfile::TempDir;
    use tokio::time::{Instant, timeout};

    use super::{Origin, Untold, Wanted};
    use crate::config::Config;
    use crate::config::problem::Problem;

    /// What is answered, one after the other, and the last for ever.
    type Answers = Arc<Mutex<VecDeque<Result<String, Untold>>>>;

    fn region(name: &str) -> Result<String, Untold> {
        Ok(format!(
            r#"{{"clusters": {{"demo": {{"region": "{name}"}}}}}}"#
        ))
    }

    fn untold(may_pass: bool) -> Result<String, Untold> {
        let why = "AWS could not be reached".to_owned();
        Err(Untold { may_pass, why })
    }

    fn origin(folder: &Path, answers: &Answers) -> Origin {
        let wanted = Wanted {
            paths: vec![folder.join("main.hcl")],
            ..Wanted::default()
        };
        let answers = answers.clone();
        let ask = move |_| {
            let mut left = answers.lock().unwrap_or_else(PoisonError::into_inner);
            let next = match left.len() {
                1 => left.front().cloned(),
                _ => left.pop_front(),
            };
            async move { next.expect("an answer") }.boxed()
        };
        Origin::asking(wanted, Some(folder), Box::new(ask))
    }

    /// A folder with a configuration whose clusters are in a parameter, its origin, and what that
    /// is told.
    fn set_up(told: &[Result<String, Untold>]) -> (TempDir, Origin, Answers) {
        let folder = TempDir::new().expect("a directory");
        write(folder.path(), "tags = {}");
        let answers: Answers = Arc::new(Mutex::new(told.iter().cloned().collect()));
        let origin = origin(folder.path(), &answers);
        (folder, origin, answers)
    }

    fn write(folder: &Path, more: &str) {
        let text = format!(
            r#"data "terraform_output" "platform" {{
  ssm_parameter = "/outputs"
  refresh       = "10m"
  mock          = {{ clusters = {{ mock = {{ region = "mock" }} }} }}
}}
cluster "fleet" {{
  for_each = data.terraform_output.platform.clusters
  name     = each.key
  region   = each.value.region
  {more}
  simulated {{}}
}}
"#
        );
        fs::write(folder.join("main.hcl"), text).expect("written");
    }

    fn region_of(read: Result<Config, Vec<Problem>>) -> String {
        let config = read.expect("a configuration");
        assert_eq!(config.clusters.len(), 1);
        config.clusters[0].region.clone()
    }

    #[tokio::test(start_paused = true)]
    async fn another_value_makes_another_configuration_when_it_is_due() {
        let told = [region("one"), region("one"), untold(true), region("two")];
        let (_folder, mut origin, _) = set_up(&told);
        assert_eq!(region_of(origin.read().await), "one");
        let start = Instant::now();
        assert_eq!(region_of(origin.changed().await), "two");
        assert_eq!(start.elapsed().as_secs(), 1800);
        // From here on it is the same for ever.
        assert!(
            timeout(Duration::from_hours(3), origin.changed())
                .await
                .is_err()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_are_being_written_wait_for_the_next_reload() {
        let (folder, mut origin, answers) = set_up(&[region("one"), region("two")]);
        assert_eq!(region_of(origin.read().await), "one");
        write(folder.path(), "half =");
        assert_eq!(region_of(origin.changed().await), "two");
        assert!(origin.read().await.is_err());
        assert!(!origin.may_pass());
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push_back(region("three"));
        drop(answers);
        assert_eq!(region_of(origin.changed().await), "three");
    }

    #[tokio::test(start_paused = true)]
    async fn outputs_of_another_shape_are_told_once() {
        let odd = Ok(r#"{"clusters": {"demo": {}}}"#.to_owned());
        let told = [region("one"), odd.clone(), odd.clone(), odd, region("one")];
        let (_folder, mut origin, _) = set_up(&told);
        assert_eq!(region_of(origin.read().await), "one");
        assert!(origin.changed().await.is_err());
        let start = Instant::now();
        assert_eq!(region_of(origin.changed().await), "one");
        assert_eq!(start.elapsed().as_secs(), 1800);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_without_an_answer_goes_on_with_what_was_told_last() {
        let (folder, mut first, answers) = set_up(&[untold(true)]);
        assert!(first.read().await.is_err());
        assert!(first.may_pass());
        let set = |told| *answers.lock().unwrap_or_else(PoisonError::into_inner) = [told].into();
        set(region("one"));
        assert_eq!(region_of(first.read().await), "one");
        set(untold(true));
        assert_eq!(
            region_of(origin(folder.path(), &answers).read().await),
            "one"
        );
        // What is gone is gone.
        set(untold(false));
        let mut again = origin(folder.path(), &answers);
        assert!(again.read().await.is_err());
        assert!(!again.may_pass());
    }
}
