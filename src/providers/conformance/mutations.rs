//! Verifies that each check can fail: the simulated provider with one defect at a time.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};

use super::checks::check;
use super::providers::{nowhere, simulated, subject};
use crate::engine::command::Command;
use crate::model::claim::{TAG_CLUSTER, TAG_INSTALLATION};
use crate::model::id::{ClaimId, InstanceId};
use crate::model::instance::InstanceState;
use crate::provider::{CommandResult, FailureKind, Launch, RefusalKind};
use crate::providers::interface::Provider;
use crate::providers::simulated::{CloudHandle, InProcess};

/// A defect of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bend {
    /// Every launch creates an instance.
    ForgetsTokens,
    /// Only the token is compared.
    IgnoresParameters,
    /// A claim whose instance has terminated gets a new one.
    ForgetsTheEnded,
    /// It launches instances with fewer tags than requested.
    DropsTags,
    /// Listings truncate a tag.
    CutsTags,
    ListsNothing,
    /// Existing instances are not listed again.
    ListsOthers,
    EndsOthers,
    /// Terminating a terminated instance terminates a different one.
    EndsAnother,
    /// Terminating a terminated instance fails.
    FailsTheSecondEnd,
    /// An instance that never existed counts as terminated.
    EndsNobody,
    /// It reports a termination without performing it.
    EndsNothing,
    RefusesWithoutKind,
    /// Every error is out of stock, even for offerings that do not exist.
    MistakesKinds,
    /// It tries only the first offering.
    TriesOnlyOne,
    DoesAnything,
}

const ALL: [Bend; 16] = [
    Bend::ForgetsTokens,
    Bend::IgnoresParameters,
    Bend::ForgetsTheEnded,
    Bend::DropsTags,
    Bend::CutsTags,
    Bend::ListsNothing,
    Bend::ListsOthers,
    Bend::EndsOthers,
    Bend::EndsAnother,
    Bend::FailsTheSecondEnd,
    Bend::EndsNobody,
    Bend::EndsNothing,
    Bend::RefusesWithoutKind,
    Bend::MistakesKinds,
    Bend::TriesOnlyOne,
    Bend::DoesAnything,
];

/// The operations so far.
#[derive(Default)]
struct Done {
    calls: u32,
    launched: BTreeMap<ClaimId, Launch>,
    instances: BTreeMap<ClaimId, InstanceId>,
    ended: Vec<InstanceId>,
}

struct Bent {
    bend: Bend,
    inner: InProcess,
    cloud: CloudHandle,
    done: Arc<Mutex<Done>>,
}

impl Bent {
    fn done(&self) -> std::sync::MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn launch(&self, mut launch: Launch) -> CommandResult {
        let claim = launch.claim.id.clone();
        {
            let mut done = self.done();
            done.calls += 1;
            let known = done.instances.get(&claim);
            let anew = match self.bend {
                Bend::ForgetsTokens => true,
                Bend::ForgetsTheEnded => known.is_some_and(|id| done.ended.contains(id)),
                _ => false,
            };
            if anew {
                launch.claim.id = ClaimId(format!("{claim}-{}", done.calls));
            }
            if self.bend == Bend::IgnoresParameters {
                let first = done.launched.entry(claim.clone()).or_insert(launch);
                launch = first.clone();
            }
        }
        if self.bend == Bend::DropsTags {
            launch.tags.remove("empty");
        }
        if self.bend == Bend::TriesOnlyOne {
            launch.offerings.truncate(1);
        }
        let answer = self.inner.execute(Command::Launch(Box::new(launch))).await;
        match answer {
            CommandResult::Launched(instance) => {
                self.done().instances.insert(claim, instance.id.clone());
                CommandResult::Launched(instance)
            }
            CommandResult::LaunchRefused(_) if self.bend == Bend::RefusesWithoutKind => unknown(),
            CommandResult::LaunchRefused(mut refusals) if self.bend == Bend::MistakesKinds => {
                for refusal in &mut refusals {
                    refusal.kind = RefusalKind::InsufficientCapacity;
                }
                CommandResult::LaunchRefused(refusals)
            }
            other => other,
        }
    }

    async fn terminate(&self, claim: ClaimId, instance: InstanceId) -> CommandResult {
        let again = self.done().ended.contains(&instance);
        let all = self.cloud.list(None).await.expect("it lists");
        let found = all.iter().find(|it| it.id == instance);
        let owner = found.and_then(|instance| {
            let installation = instance.tags.get(TAG_INSTALLATION)?.clone();
            Some((installation, instance.tags.get(TAG_CLUSTER)?.clone()))
        });
        let another = all.iter().find(|it| it.state.is_live());
        let (target, of) = match self.bend {
            Bend::FailsTheSecondEnd if again => return unknown(),
            Bend::EndsNobody if found.is_none() => {
                return CommandResult::Terminating(InstanceState::Terminated);
            }
            Bend::EndsNothing => return CommandResult::Terminating(InstanceState::ShuttingDown),
            Bend::EndsAnother if again => (another.map(|it| it.id.clone()), None),
            Bend::EndsOthers => (None, owner),
            _ => (None, None),
        };
        self.done().ended.push(instance.clone());
        if let Some((installation, cluster)) = of {
            return self.cloud.terminate(instance, (installation, cluster.into())).await;
        }
        let instance = target.unwrap_or(instance);
        self.inner.execute(Command::Terminate { claim, instance }).await
    }

    async fn list(&self) -> CommandResult {
        let all = match self.bend {
            Bend::ListsNothing => return CommandResult::Instances(Vec::new()),
            Bend::ListsOthers => self.cloud.list(None).await.map(CommandResult::Instances),
            _ => Some(self.inner.execute(Command::ListInstances).await),
        };
        match all.expect("it lists") {
            CommandResult::Instances(mut all) if self.bend == Bend::CutsTags => {
                for value in all
                    .iter_mut()
                    .flat_map(|instance| Arc::make_mut(&mut instance.tags).values_mut())
                {
                    *value = value.chars().take(255).collect();
                }
                CommandResult::Instances(all)
            }
            other => other,
        }
    }
}

fn unknown() -> CommandResult {
    CommandResult::Failed { kind: FailureKind::Unknown, text: "bent".to_owned() }
}

impl Provider for Bent {
    fn execute(&self, command: Command) -> BoxFuture<'_, CommandResult> {
        async move {
            match command {
                Command::Launch(launch) => self.launch(*launch).await,
                Command::Terminate { claim, instance } => self.terminate(claim, instance).await,
                Command::ListInstances => self.list().await,
                _ if self.bend == Bend::DoesAnything => CommandResult::Done,
                other => self.inner.execute(other).await,
            }
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_bent_provider_is_found() {
    let checks = ALL.map(|bend| async move {
        let (cloud, done) = (simulated(), Arc::default());
        let open = |installation: &str, cluster: &str| -> Arc<dyn Provider> {
            let inner = InProcess {
                cloud: cloud.clone(),
                installation: installation.to_owned(),
                cluster: cluster.into(),
                home: nowhere(),
            };
            let (cloud, done) = (cloud.clone(), Arc::clone(&done));
            Arc::new(Bent { bend, inner, cloud, done })
        };
        let subject = subject(&open);
        let found = AssertUnwindSafe(check(&subject)).catch_unwind().await;
        assert!(found.is_err(), "{bend:?} passes every check");
    });
    join_all(checks).await;
}
