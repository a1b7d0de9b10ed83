// W1 under SimGrid's S4U interface: ring steps of N hosts, one actor per rank. Prints simulated ms and CPU-seconds.
#include <ctime>
#include <iostream>
#include <simgrid/s4u.hpp>
#include <string>
#include <vector>
namespace sg4 = simgrid::s4u;

int main(int argc, char** argv) {
  sg4::Engine engine(&argc, argv);  // which registers the settings below
  sg4::Engine::set_config("network/model:CM02");
  sg4::Engine::set_config("network/TCP-gamma:0");
  sg4::Engine::set_config("network/crosstraffic:0");
  sg4::Engine::set_config("network/weight-S:0");
  const int n = std::stoi(argv[1]);
  const double chunk = double(1 << 30) / n;
  auto* zone = sg4::create_full_zone("flat");
  std::vector<sg4::Host*> hosts;
  std::vector<sg4::Link*> up, down;
  for (int i = 0; i < n; i++) {
    hosts.push_back(zone->create_host("h" + std::to_string(i), 1e9));
    up.push_back(zone->create_link("u" + std::to_string(i), 50e9)->set_latency(1e-6));
    down.push_back(zone->create_link("d" + std::to_string(i), 50e9)->set_latency(1e-6));
  }
  for (int i = 0; i < n; i++) {
    int j = (i + 1) % n;
    zone->add_route(hosts[i]->get_netpoint(), hosts[j]->get_netpoint(), nullptr, nullptr,
                    {sg4::LinkInRoute(up[i]), sg4::LinkInRoute(down[j])}, false);
  }
  zone->seal();
  static int token = 0;
  for (int r = 0; r < n; r++)
    sg4::Actor::create("r" + std::to_string(r), hosts[r], [r, n, chunk] {
      auto* in = sg4::Mailbox::by_name(std::to_string(r));
      auto* out = sg4::Mailbox::by_name(std::to_string((r + 1) % n));
      for (int s = 0; s < 2 * (n - 1); s++) {
        int* got = nullptr;
        auto receive = in->get_async<int>(&got);
        out->put(&token, chunk);
        receive->wait();
      }
    });
  const clock_t before = clock();
  engine.run();
  std::cout << sg4::Engine::get_clock() * 1e3 << " ms simulated, " << double(clock() - before) / CLOCKS_PER_SEC
            << " s CPU" << std::endl;
}
