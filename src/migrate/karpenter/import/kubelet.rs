//! Kubelet settings that earlier versions had in pools.

use serde_json::Value;

use super::pool::class_of;
use super::{Object, Objects};
use crate::migrate::dropped::DroppedField;

/// Moves the settings to the node classes of their pools. If the settings of pools with the same
/// class differ, each further variant of the settings gets a copy of the class, named after the
/// class and the first pool.
pub(super) fn move_to_classes(objects: &mut Objects) {
    if objects.kubelets.is_empty() {
        return;
    }
    let names: Vec<String> = objects.classes.iter().map(|class| class.name.clone()).collect();
    for name in names {
        let mut pools: Vec<&mut Object> = objects
            .pools
            .iter_mut()
            .filter(|pool| class_of(&pool.spec).as_deref() == Some(name.as_str()))
            .collect();
        let settings: Vec<Option<Value>> =
            pools.iter().map(|pool| objects.kubelets.get(&pool.name).cloned()).collect();
        // A pool without settings uses the class without settings.
        let base = match settings.iter().all(Option::is_some) {
            true => settings.first().cloned().flatten(),
            false => None,
        };
        let mut copies: Vec<(Value, String)> = Vec::new();
        for (pool, setting) in pools.iter_mut().zip(&settings) {
            let Some(setting) = setting.as_ref().filter(|setting| Some(*setting) != base.as_ref())
            else {
                continue;
            };
            let known = copies.iter().find(|(known_setting, _)| known_setting == setting);
            let copy = match known {
                Some((_, copy)) => copy.clone(),
                None => {
                    let copy = format!("{name}-{}", pool.name);
                    copies.push((setting.clone(), copy.clone()));
                    copy
                }
            };
            set_class_reference(pool, &copy);
        }
        let Some(class) = objects.classes.iter_mut().find(|class| class.name == name) else {
            continue;
        };
        let plain = class.clone();
        if let Some(base) = base {
            set_kubelet(class, base);
        }
        for (setting, copy) in copies {
            let mut class = plain.clone();
            class.name.clone_from(&copy);
            class.about.push(format!("{name:?} with the kubelet settings of one of its pools."));
            set_kubelet(&mut class, setting);
            objects.classes.push(class);
        }
    }
}

fn set_kubelet(class: &mut Object, settings: Value) {
    if class.spec.contains_key("kubelet") {
        let (path, why) = ("kubelet of its pools", "the node class has its own kubelet settings");
        class.lost.push(DroppedField::new(class.of.as_str(), path, why));
        return;
    }
    class.spec.insert("kubelet".to_owned(), settings);
}

fn set_class_reference(pool: &mut Object, class: &str) {
    let spec = pool.spec.get_mut("template").and_then(|spec| spec.get_mut("spec"));
    if let Some(reference) = spec.and_then(|spec| spec.get_mut("nodeClassRef")) {
        reference["name"] = Value::from(class);
    }
}
