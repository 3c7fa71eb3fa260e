//! Reads the data of a region: types, network, zonal shifts, prices and instance status.

use super::{RegionTask, send_within_limit};
use crate::ec2::instance_status::instance_problems;
use crate::ec2::resolve_node_class::ListedReservation;
use crate::engine::event::Event;
use crate::host::clock;
use crate::providers::aws::error::AwsError;
use crate::providers::aws::{
    cluster_info, instance_status, instance_types, pricing, refresh, zonal_shift,
};

impl RegionTask {
    /// Reads the instance types and their zones.
    pub(super) async fn read_types(&mut self) -> Result<bool, AwsError> {
        let account = &self.shared.account;
        let specs = instance_types::list_types(account).await?;
        let offerings = instance_types::list_offerings(account).await?;
        let is_changed = self.region.set_shapes(specs, &self.shipped);
        Ok(self.region.set_zones(offerings) || is_changed)
    }

    /// Reads subnets, security groups, and reservations and placement groups if used.
    pub(super) async fn read_network(&mut self) -> Result<bool, AwsError> {
        let account = &self.shared.account;
        let (mut reservations, mut groups) = (false, false);
        for class in self.members.values().flat_map(|it| &it.cluster.node_classes) {
            reservations |= !class.reservations.is_empty();
            groups |= class.placement_group.is_some();
        }
        let (counted, outcome) =
            refresh::refresh_resources(account, &mut self.found, reservations, groups).await;
        // An older count of free addresses would include addresses that launches have reserved
        // since.
        if let Ok(subnets) = self.found.subnets.as_ref()
            && counted
        {
            let subnets: Vec<_> = subnets.iter().map(|(subnet, _)| subnet.clone()).collect();
            let zones = subnets.iter().map(|it| (it.zone.clone(), it.zone_id.clone()));
            self.region.set_zone_ids(zones);
            if let Ok(mut ledger) = self.shared.subnets.lock() {
                ledger.apply_counts(&subnets);
            }
        }
        outcome.map(|()| true)
    }

    /// Reads the reservations, if node classes select any. Other accounts and tools use them, too.
    /// Returns whether the selected ones have changed.
    pub(super) async fn read_reservations(&mut self) -> Result<bool, AwsError> {
        let known = self.selected_reservations();
        if known.is_none() {
            return Ok(false);
        }
        refresh::refresh_reservations(&self.shared.account, &mut self.found).await?;
        Ok(self.selected_reservations() != known)
    }

    /// Returns the reservations that node classes select, without the time of their count. `None`
    /// if no node class selects any.
    fn selected_reservations(&self) -> Option<Vec<ListedReservation>> {
        let classes = self.members.values().flat_map(|it| &it.cluster.node_classes);
        let terms: Vec<_> = classes.flat_map(|class| &class.reservations).collect();
        let listed = self.found.reservations.iter().flatten();
        let selected = listed.filter(|listed| terms.iter().any(|term| listed.matches(term)));
        let uncounted = selected.cloned().map(|mut listed| {
            listed.found.reservation.counted = None;
            listed
        });
        let mut all: Vec<_> = uncounted.collect();
        all.sort_by(|one, other| one.found.reservation.id.cmp(&other.found.reservation.id));
        (!terms.is_empty()).then_some(all)
    }

    /// Reads zonal shifts, which exist only for EKS clusters.
    pub(super) async fn read_shifts(&mut self) -> Result<bool, AwsError> {
        let mut is_changed = false;
        let clusters = self.members.values().map(|member| &member.cluster);
        let wanted = clusters.filter(|cluster| cluster.zonal_shift).cloned();
        for shifting in wanted.collect::<Vec<_>>() {
            let Some(eks) = &shifting.eks else { continue };
            let account = self.shared.account.clone();
            let name = eks.name.clone().unwrap_or(shifting.name.to_string());
            let arn = match self.arns.get(&name) {
                Some(arn) => arn.clone(),
                None => {
                    let listed = cluster_info::describe_cluster(&account, &name).await?;
                    listed.arn().unwrap_or_default().to_owned()
                }
            };
            self.arns.insert(name, arn.clone());
            let zones = zonal_shift::shifted_zones(&account, &arn).await?;
            let before = self.shifted.insert(shifting.name.clone(), zones.clone());
            if before.unwrap_or_default() != zones {
                tracing::warn!(cluster = %shifting.name, ?zones, "detected zonal shift");
                is_changed = true;
            }
        }
        Ok(is_changed)
    }

    /// Reads current spot prices.
    pub(super) async fn read_spot_prices(&mut self) -> Result<bool, AwsError> {
        let prices = pricing::read_spot_prices(&self.shared.account).await?;
        Ok(self.region.set_spot_prices(&prices, clock::now()))
    }

    /// Reads the price list.
    pub(super) async fn read_list_prices(&mut self) -> Result<bool, AwsError> {
        let (shared, metal) = pricing::read_list_prices(&self.shared.account).await?;
        let taken = self.region.set_list_prices(&shared, &metal, clock::now());
        let (region, source) = (&self.region.name, self.region.source.to_string());
        tracing::info!(region, taken, source, "read list prices");
        Ok(taken)
    }

    /// Sends failed checks and scheduled maintenance of instances to the engines.
    pub(super) async fn send_health_events(&mut self) -> Result<bool, AwsError> {
        let rows = instance_status::unhealthy_instances(&self.shared.account).await?;
        for (instance, (interruption, deadline)) in instance_problems(&rows, clock::now()) {
            for member in self.members.values() {
                // An engine ignores instances of other clusters.
                let event = Event::interrupted(instance.clone(), interruption, deadline);
                if let Some(events) = &member.events {
                    // If the engine does not accept the event now, the next read sends it again.
                    send_within_limit(events, event).await;
                }
            }
        }
        Ok(false)
    }
}
