//! Delivers commands, checks them against the ground truth, executes them, and returns results.

use jiff::{SignedDuration, Timestamp};

use crate::engine::command::{Command, IssuedCommand};
use crate::model::claim::ClaimRecord;
use crate::model::id::InstanceId;
use crate::model::instance::{Instance, OfferingKey};
use crate::model::taint::Taint;
use crate::model::watched_object::ObjectKind;
use crate::provider::{CommandResult, FailureKind, Launch};
use crate::sim::cloud::failed_result;
use crate::sim::faults::{CommandFault, CommandTrip};
use crate::sim::invariants::{Invariant, adds_disrupted_taint};
use crate::sim::timeline::TimelineFact;
use crate::sim::{ScheduledEvent, World};

/// Maximum number of commands within a minute, in addition to a few commands per pod. A correct
/// engine sends fewer.
const RUSH_MIN: usize = 1200;
const RUSH_EACH: usize = 5;

impl World {
    /// Sends a command: it is checked, delivered, and executed.
    pub fn send_command(&mut self, issued: IssuedCommand) {
        if self.is_rushing() {
            return;
        }
        if issued.command.is_for_fleet() {
            self.for_fleet.push_back(issued);
            return;
        }
        let doubt = self.watches.sync_doubt(self.now);
        self.checker.check_issued(&issued.command, doubt, &self.scene, self.now);
        let trip = self.faults.draw_trip(&issued.command, self.now);
        self.set_timer(trip.there, ScheduledEvent::Arrive(self.life, Box::new(issued), trip));
    }

    /// Returns true if the engine sends commands without end. The daemon is then stopped, so that
    /// the run ends.
    fn is_rushing(&mut self) -> bool {
        let (since, count) = self.rush;
        let is_same_minute = self.now.duration_since(since) < SignedDuration::from_mins(1);
        self.rush = if is_same_minute { (since, count + 1) } else { (self.now, 1) };
        if self.rush.1 < RUSH_MIN {
            return false;
        }
        let max_commands = RUSH_MIN + RUSH_EACH * self.scene.cluster.store().pods().len();
        if self.rush.1 >= max_commands && self.engine.is_some() {
            let text = format!("{max_commands} commands within a minute");
            self.checker.add_violation(Invariant::Spin, self.now, text);
            self.stop_daemon();
        }
        self.rush.1 >= max_commands
    }

    pub(super) fn on_command_arrival(
        &mut self,
        life: u64,
        issued: IssuedCommand,
        trip: CommandTrip,
    ) {
        let IssuedCommand { id, command } = issued;
        let sent = self.now.checked_sub(trip.there).unwrap_or(self.now);
        let answer = match trip.fate {
            CommandFault::Throttled => {
                failed_result(FailureKind::Throttled, "RequestLimitExceeded")
            }
            CommandFault::LostBefore => failed_result(FailureKind::Unknown, "no answer"),
            CommandFault::LostAfter => {
                self.execute_command(&command, sent);
                failed_result(FailureKind::Unknown, "no answer")
            }
            CommandFault::Silent { carried } => {
                if carried {
                    self.execute_command(&command, sent);
                }
                return;
            }
            CommandFault::Blocked => {
                CommandResult::EvictRefused("the budget is not yet known".to_owned())
            }
            CommandFault::SoldOut { offerings } => {
                self.exhaust_offerings(&command, offerings);
                self.execute_command(&command, sent)
            }
            CommandFault::Overtaken => {
                self.change_node_first(&command);
                self.execute_command(&command, sent)
            }
            CommandFault::Carried => self.execute_command(&command, sent),
        };
        let due = ScheduledEvent::Answer(life, id, Box::new(answer));
        if trip.twice {
            let second_time = trip.back.saturating_add(SignedDuration::from_millis(700));
            self.set_timer(second_time, due.clone());
        }
        self.set_timer(trip.back, due);
    }

    /// Executes a command that was sent some time ago.
    fn execute_command(&mut self, command: &Command, sent: Timestamp) -> CommandResult {
        self.checker.check_arriving(command, &self.scene, sent, self.now);
        let answer = match command {
            Command::Launch(launch) => self.launch_instance(launch),
            Command::Terminate { instance, .. } => self.terminate_instance(instance),
            Command::ListInstances => {
                let config = &self.scene.config;
                let list =
                    self.scene.cloud.list_instances(&config.installation, &config.name, self.now);
                CommandResult::Instances(list)
            }
            Command::Tag { instances, tags } => {
                self.scene.cloud.tag(instances, tags);
                CommandResult::Done
            }
            Command::Adopt(adoption) => self.scene.cloud.adopt_instance(adoption, self.now),
            Command::Rewatch { kind } => self.restart_watch(*kind),
            _ => {
                self.scene.cluster.execute_command(command, self.now).unwrap_or(CommandResult::Done)
            }
        };
        if let Command::PatchNode(patch) = command
            && adds_disrupted_taint(patch)
            && let Some(wait) = self.faults.draw_untaint(self.now)
        {
            let meddle = ScheduledEvent::Untaint(patch.node.clone());
            self.set_timer(wait, meddle);
        }
        self.route_changes();
        answer
    }

    fn launch_instance(&mut self, launch: &Launch) -> CommandResult {
        let before = self.scene.cloud.all_instances().count();
        let answer = self.scene.cloud.launch(launch, self.now);
        match &answer {
            CommandResult::Launched(instance)
                if self.scene.cloud.all_instances().count() > before =>
            {
                self.on_launched(launch, instance);
            }
            CommandResult::LaunchRefused(refusals) => {
                self.tally.refusals += 1;
                let offerings = refusals.iter().map(|refusal| refusal.offering.clone()).collect();
                self.note_fact(TimelineFact::Refused { claim: launch.claim.id.clone(), offerings });
            }
            _ => {}
        }
        answer
    }

    fn on_launched(&mut self, launch: &Launch, instance: &Instance) {
        if self.scene.is_ours(instance) {
            self.tally.launched += 1;
            self.live += 1;
            self.tally.peak = self.tally.peak.max(self.live);
        }
        let price = self.scene.catalog.offering(&instance.offering).map(|offering| offering.price);
        self.note_fact(TimelineFact::Launched {
            claim: launch.claim.id.clone(),
            instance: instance.id.clone(),
            offering: instance.offering.clone(),
            price: price.unwrap_or_default(),
        });
        self.checker.check_launched(&self.scene, self.now);
    }

    fn terminate_instance(&mut self, instance: &InstanceId) -> CommandResult {
        if let Some(machine) = self.scene.cloud.get(instance.as_str())
            && machine.is_live()
        {
            let fact = TimelineFact::Retired {
                instance: instance.clone(),
                offering: machine.truth().offering.clone(),
                ran: machine.billed_time(self.now),
            };
            self.note_fact(fact);
        }
        self.scene.cloud.terminate(instance, self.now)
    }

    pub(super) fn on_machine_ended(&mut self, instance: &InstanceId) {
        let Some(machine) = self.scene.cloud.get(instance.as_str()) else {
            return;
        };
        if self.scene.is_ours(machine.truth()) {
            self.live = self.live.saturating_sub(1);
            self.tally.retired += 1;
        }
        self.scene.cluster.on_machine_ended(instance, self.now);
    }

    /// The startup taints of a managed instance. Empty for a foreign instance.
    pub(super) fn startup_taints(&self, instance: &Instance) -> Option<Vec<Taint>> {
        let config = &self.scene.config;
        ClaimRecord::of_instance(instance, &config.installation, &config.name)
            .ok()
            .map(|record| record.startup_taints)
    }

    /// Restarts a watch, unless a fault has broken it.
    fn restart_watch(&mut self, kind: ObjectKind) -> CommandResult {
        if self.watches.is_up(kind) {
            let wait = self.draw_lag(20, 300);
            // A listing after an incomplete listing is often incomplete as well.
            let cut = self.cuts.get(&kind).copied().filter(|_| self.picks.bool());
            self.list_kind(kind, cut, wait);
        }
        CommandResult::Done
    }

    fn exhaust_offerings(&mut self, command: &Command, offerings: usize) {
        let Command::Launch(launch) = command else {
            return;
        };
        let keys: Vec<OfferingKey> = launch.offerings.iter().take(offerings).cloned().collect();
        for key in &keys {
            self.scene.cloud.set_capacity(key.clone(), Some(0));
        }
        let wait = self.draw_lag(60_000, 600_000);
        self.set_timer(wait, ScheduledEvent::Restock(keys));
    }

    /// Simulates an external actor that changes the node while the patch is in flight.
    fn change_node_first(&mut self, command: &Command) {
        let Command::PatchNode(patch) = command else {
            return;
        };
        let now = self.now;
        self.scene.cluster.store_mut().change_node(&patch.node, now, |node| {
            node.annotations.insert("example.com/written".to_owned(), now.to_string());
        });
    }
}
