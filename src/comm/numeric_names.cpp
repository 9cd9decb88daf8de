#include <dlfcn.h>
#include <netdb.h>

// Stands before the C library's. For its log c10d's store asks for the name of each address that it connects to or is reached from, one
// after the other. Where no name server answers, each costs ten seconds or more: longer than a rendezvous may take. Here addresses have
// no names, and nothing is asked. The program itself exports this, as libtorch looks there first.
extern "C" int getnameinfo(const sockaddr* address, socklen_t length, char* host, socklen_t host_length, char* service,
                           socklen_t service_length, int flags) {
  static const auto of_the_c_library = reinterpret_cast<decltype(&getnameinfo)>(dlsym(RTLD_NEXT, "getnameinfo"));
  return of_the_c_library(address, length, host, host_length, service, service_length, flags | NI_NUMERICHOST | NI_NUMERICSERV);
}
